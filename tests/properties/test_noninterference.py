"""Raw labels leave no trace but the released labels.

Two worlds differ in raw labels (strict labels become ties and back) and in coins, together, so that
the released labels are equal. Then everything else must be equal, byte for byte: releases, cards,
what the commands print, their exit codes, the ledger with its journal, and the private map.

The order of a file may tell its labels too: in one world every file is shuffled, in the other it is
sorted by them. Only the numbers of rows in messages follow the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support import exports
from support.preferences import LAYOUTS, opinions, public
from support.scenarios import ALL, ONE, SCENARIOS
from support.worlds import Coins, Run, Scenario, differences, observed

from labelguard.ingest import staged, staging
from labelguard.jobs import lessons
from labelguard.jobs.settings import Job
from labelguard.release import planning
from labelguard.release.methods import rr
from labelguard.terms import LABEL_TIE

SAID = {1: 1, 0: 0, None: 1}
"""Label Studio has no ties: who has none here prefers the left."""
EVERYWHERE = ("more labels later", "skips hidden among ties", "statistic", "props")
EVERYWHERE += ("statistic of sources", "uls")
"""What other layouts than pairs go through in every run of the tests; the rest is slow."""
SECOND = (
    "one worker",
    "public ties kept",
    "fewer labels later",
    "again refused",
    "statistic in windows",
    "statistic of numbers as text",
    "statistic of sources as text",
    "statistic of public ties",
    "statistic of single labels",
    "props after rr",
    "uls, as JSON",
    "uls of single labels",
    "uls beside the rest",
)
"""Variants of what other scenarios go through in every run: slow."""


def _in_every_run(layout: str, name: str, who: list[int]) -> bool:
    if layout == "pairs":
        return name not in SECOND and (who == ALL or name == "more labels later")
    return name in EVERYWHERE and who == ALL


CASES = [
    pytest.param(
        layout,
        scenario,
        who,
        id=f"{layout}: {name}: {len(who)} labelers",
        marks=[] if _in_every_run(layout, name, who) else pytest.mark.slow,
    )
    for layout in LAYOUTS
    for name, scenario in SCENARIOS.items()
    for who in (ALL, *([ONE] if name in ("one run", "more labels later", "refused") else []))
    if not (layout == "rankings" and (scenario.suffix != ".parquet" or "--again" in str(scenario)))
    if layout == "pairs"
    or not any(run.ingested for run in scenario.runs)  # the tool asks for pairs
]


@pytest.mark.quick(
    "pairs: one run: 7 labelers",
    "pairs: more labels later: 7 labelers",
    "pairs: refused: 7 labelers",
    "pairs: skips hidden among ties: 7 labelers",
    "pairs: statistic: 7 labelers",
    "pairs: props: 7 labelers",
    "pairs: uls: 7 labelers",
    "pairs: evaluation: 7 labelers",
    "pairs: somebody leaves: 7 labelers",
    "pairs: retraining: 7 labelers",
)
@pytest.mark.parametrize(("layout", "scenario", "labelers"), CASES)
def test_nothing_but_released_labels_depends_on_raw_labels(
    layout: str, scenario: Scenario, labelers: list[int], tmp_path: Path
) -> None:
    assert differences(tmp_path, layout, scenario, labelers) == []


@pytest.mark.quick("label_studio")
@pytest.mark.parametrize("tool", [exports.argilla_flat, exports.label_studio])
def test_an_export_of_an_annotation_tool_tells_released_labels_only(
    tool: exports.Writer, tmp_path: Path
) -> None:
    def exported(table: pa.Table) -> pa.Table:
        rows = [{**row, "label": SAID[row["label"]]} for row in table.to_pylist()]
        return pa.Table.from_pylist([tool([row])[0] for row in rows])

    later = replace(SCENARIOS["more labels later"], suffix=".jsonl", dressed=exported)
    assert differences(tmp_path, "pairs", later, ALL) == []


def test_the_comparison_sees_everything_a_project_holds(tmp_path: Path) -> None:
    asked = public()
    seen = observed(
        tmp_path / "world",
        "pairs",
        SCENARIOS["one run, as JSON"],
        asked,
        opinions(len(asked), 1),
        Coins({}, replayed=False),
    )
    for part in ("data.parquet", "card.json", "CARD.md", "SHA256SUMS"):
        assert f"output/{part}" in seen
        assert any(".labelguard/releases/" in name and name.endswith(part) for name in seen)
    assert ".labelguard/keys/project.key" in seen and ".labelguard/ledger.sqlite3" in seen
    assert any(".labelguard/released/" in name for name in seen)
    assert len(seen["journal"]) == 6  # type: ignore[arg-type]


CHOSEN = (
    "one run",
    "more labels later",
    "bound",
    "again",
    "refused",
    "single labels",
    "quarantine",
)
"""What choices of the best of several go through, by randomized response."""


def blank_choices(table: pa.Table) -> pa.Table:
    """A blank where the last response was chosen, which is a tie."""
    rows = table.to_pylist()
    for row in rows:
        row["choice"] = None if row["choice"] == len(row["responses"]) - 1 else row["choice"]
    return pa.Table.from_pylist(rows)


SKIPPED = Scenario((Run(("--skips", "tie")),), dressed=blank_choices)


@pytest.mark.quick("one run")
@pytest.mark.parametrize(
    "scenario",
    [
        *(pytest.param(SCENARIOS[name], id=name) for name in CHOSEN),
        pytest.param(SKIPPED, id="skips hidden among choices"),
    ],
)
def test_nothing_but_released_choices_depends_on_raw_choices(
    scenario: Scenario, tmp_path: Path
) -> None:
    assert differences(tmp_path, "choices", scenario, ALL) == []


def test_a_choice_that_is_broken_into_its_pairs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = rr._choices

    def broken(task: Any, own: Any, label: Any, choices: Any) -> Any:
        told = choices.published & (label[choices.rows] != LABEL_TIE)
        object.__setattr__(choices, "published", told)
        return drawn(task, own, label, choices)

    monkeypatch.setattr(rr, "_choices", broken)
    found = differences(tmp_path, "choices", SCENARIOS["one run"], ALL)
    assert any("data.parquet" in name for name in found)


# Negative controls: three natural mistakes, each of which the comparison must find.


@pytest.fixture
def ties_are_dropped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    whole = staging._Stager._usable

    def without_ties(self: Any, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        usable = whole(self, name, batch)
        return usable.filter(pa.array(usable["label"].to_numpy() != LABEL_TIE))

    monkeypatch.setattr(staging._Stager, "_usable", without_ties)
    yield


@pytest.fixture
def labels_enter_the_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    whole = staging._Stager._usable

    def digested(self: Any, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        usable = whole(self, name, batch)
        self._digest += usable["label"].to_numpy().sum(dtype=np.uint64)
        return usable

    monkeypatch.setattr(staging._Stager, "_usable", digested)
    yield


@pytest.fixture
def rows_keep_the_order_of_the_file(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(staged, "canonical_order", lambda table: np.arange(table.num_rows))
    yield


@pytest.fixture
def the_ledger_counts_preferences(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    counts = planning.counts

    def with_size(plan: planning.Plan) -> dict[str, int]:
        rows = plan.directory.parent / "input" / "rows"
        raw = b"".join(path.read_bytes() for path in sorted(rows.iterdir()))
        return counts(plan) | {"ones": raw.count(1)}

    monkeypatch.setattr(planning, "counts", with_size)
    yield


@pytest.fixture
def what_is_learned_is_known_by_its_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    whole = lessons.lesson

    def by_input(job: Job, *rest: Any) -> str:
        assert job.source
        raw = b"".join(Path(name).read_bytes() for name in job.source)
        return whole(job, *rest) + str(sum(raw) % 97)

    monkeypatch.setattr(lessons, "lesson", by_input)
    yield


@pytest.mark.slow
def test_a_job_that_leaks_is_found(
    what_is_learned_is_known_by_its_input: None, tmp_path: Path
) -> None:
    found = differences(tmp_path, "pairs", SCENARIOS["retraining"], ALL)
    assert any("history.jsonl" in name for name in found)


@pytest.mark.quick("uls")
@pytest.mark.parametrize("name", ["uls", "els", "els-group", "aup"])
def test_without_noise_a_run_tells_labels(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what is released follows from the sums, so they have to be noisy."""
    monkeypatch.setattr(Coins, "noisy", lambda self, total, *_: total.astype(object))
    found = differences(tmp_path, "pairs", SCENARIOS[name], ALL)
    for part in ("data.parquet", "head.npz", "trained.npz"):
        assert any(file.endswith(part) for file in found)


@pytest.mark.quick("rows_keep_the_order_of_the_file", "the_ledger_counts_preferences")
@pytest.mark.parametrize(
    "mistake",
    [
        "ties_are_dropped",
        "labels_enter_the_key",
        "rows_keep_the_order_of_the_file",
        "the_ledger_counts_preferences",
    ],
)
def test_a_leak_is_found(mistake: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(mistake)
    try:
        found = differences(tmp_path, "pairs", SCENARIOS["one run"], ALL)
    except KeyError:  # other rows were drawn: the worlds differ in what they release
        return
    assert found
