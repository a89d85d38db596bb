"""The report, in every format, depends on raw labels through released labels alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.preferences import opinions, public
from support.scenarios import ALL, SCENARIOS
from support.worlds import Coins, differences, observed

from labelguard.release import planning

REPORTS = (
    ("report", "-o", "report.html"),
    ("report", "-o", "report.md"),
    ("report", "--json", "-o", "report.json"),
)
IN_EVERY_RUN = ("more labels later", "statistic")


@pytest.mark.quick("more labels later")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in IN_EVERY_RUN else pytest.mark.slow)
        for name in (*IN_EVERY_RUN, "exhausted labels dropped", "pulled from a tool", "props")
    ],
)
def test_a_report_tells_released_labels_only(name: str, tmp_path: Path) -> None:
    scenario = replace(SCENARIOS[name], afterwards=REPORTS)
    assert differences(tmp_path, "pairs", scenario, ALL) == []


@pytest.mark.slow
def test_the_comparison_sees_the_reports(tmp_path: Path) -> None:
    scenario = replace(SCENARIOS["one run"], afterwards=REPORTS)
    asked, coins = public(), Coins({}, replayed=False)
    thought = opinions(len(asked), 1)
    seen = observed(tmp_path / "world", "pairs", scenario, asked, thought, coins)
    for name in ("report.html", "report.md", "report.json"):
        assert len(seen[name]) > 5_000  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_report_that_counts_preferences_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = planning.counts

    def telling(plan: planning.PlannedRows) -> dict[str, int]:
        rows = plan.directory.parent / "input" / "rows"
        raw = b"".join(path.read_bytes() for path in sorted(rows.iterdir()))
        return counts(plan) | {"duplicates": raw.count(1)}

    monkeypatch.setattr(planning, "counts", telling)
    scenario = replace(SCENARIOS["one run"], afterwards=REPORTS)
    found = differences(tmp_path, "pairs", scenario, ALL)
    assert {"report.html", "report.md", "report.json"} <= set(found)
