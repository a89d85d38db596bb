"""Raw labels leave no trace but the released labels.

Two worlds differ in raw labels (strict labels become ties and back) and in coins, together, so that
the released labels are equal. Then everything else must be equal, byte for byte: releases, cards,
what the commands print, their exit codes, the ledger with its journal, and the private map.

The order of a file may tell its labels too: in one world every file is shuffled, in the other it is
sorted by them. Only the numbers of rows in messages follow the file.
"""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from support import exports, leaks
from support.preferences import LAYOUTS, opinions, public
from support.scenarios import ALL, HALF, ONE, SCENARIOS
from support.worlds import Coins, Run, Scenario, differences, observed

from labelguard.jobs import finish

# Label Studio has no ties: who has none here prefers the left.
SAID = {1: 1, 0: 0, None: 1}
ELSEWHERE = ("one run", "more labels later", "bound", "refused", "skips hidden among ties")
ELSEWHERE += ("statistic", "statistic of sources", "props", "uls")
"""What layouts other than pairs go through."""
CASES = [
    pytest.param(layout, SCENARIOS[name], who, id=f"{layout}: {name}: {len(who)} labelers")
    for layout in LAYOUTS
    for name in (SCENARIOS if layout == "pairs" else ELSEWHERE)
    for who in ((ALL, ONE) if layout == "pairs" and name in ELSEWHERE[:2] else (ALL,))
]


@pytest.mark.quick(
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
def test_nothing_but_released_labels_depends_on_raw_labels(layout, scenario, labelers, tmp_path):
    assert differences(tmp_path, layout, scenario, labelers) == []


@pytest.mark.quick("label_studio")
@pytest.mark.parametrize("tool", [exports.argilla_flat, exports.label_studio])
def test_an_export_of_an_annotation_tool_tells_released_labels_only(tool, tmp_path):
    def exported(table):
        rows = [{**row, "label": SAID[row["label"]]} for row in table.to_pylist()]
        return pa.Table.from_pylist([tool([row])[0] for row in rows])

    later = replace(SCENARIOS["more labels later"], suffix=".jsonl", dressed=exported)
    assert differences(tmp_path, "pairs", later, ALL) == []


def everything(here, scenario):
    asked = public()
    return observed(
        here, "pairs", scenario, asked, opinions(len(asked), 1), Coins({}, replayed=False)
    )


def test_the_comparison_sees_everything_a_project_holds(tmp_path):
    seen = everything(tmp_path / "world", SCENARIOS["one run"])
    for part in ("data.parquet", "card.json", "CARD.md", "SHA256SUMS"):
        assert f"output/{part}" in seen
        assert any(".labelguard/releases/" in name and name.endswith(part) for name in seen)
    assert ".labelguard/keys/project.key" in seen and ".labelguard/ledger.sqlite3" in seen
    assert any(".labelguard/released/" in name for name in seen)
    assert len(seen["journal"]) == 6  # type: ignore[arg-type]


# What choices of the best of several go through, by randomized response: each is a ranking.
CHOSEN = (
    "one run",
    "more labels later",
    "bound",
    "again",
    "refused",
    "single labels",
    "quarantine",
)


def blank_choices(table):
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
def test_nothing_but_released_choices_depends_on_raw_choices(scenario, tmp_path):
    assert differences(tmp_path, "choices", scenario, ALL) == []


REPORTS = (
    ("report", "-o", "report.html"),
    ("report", "-o", "report.md"),
    ("report", "--json", "-o", "report.json"),
)


@pytest.mark.quick("more labels later")
@pytest.mark.parametrize("name", ["more labels later", "statistic", "pulled from a tool", "props"])
def test_a_report_tells_released_labels_only(name, tmp_path):
    scenario = replace(SCENARIOS[name], afterwards=REPORTS)
    assert differences(tmp_path, "pairs", scenario, ALL) == []


def by_learner(gates, *more):
    learner = ("--learner", "gated", "--model", str(gates.directory))
    return ("--mechanism", "props", *learner, "--stages", "3", *more)


def test_a_release_with_a_model_tells_released_labels_only(gates, tmp_path):
    runs = Run(by_learner(gates), HALF), Run(by_learner(gates, "--combine", "soft"), HALF)
    assert differences(tmp_path, "pairs", Scenario(runs), ALL) == []


@pytest.mark.slow
def test_so_does_all_that_is_on_disk_while_it_learns(gates, tmp_path):
    gates.break_at(1)
    scenario = Scenario((Run(by_learner(gates), exits=1),), afterwards=(("release", "list"),))
    assert differences(tmp_path, "pairs", scenario, ALL) == []
    seen = everything(tmp_path / "one", scenario)
    for part in ("kept/texts/", "kept/outcomes/", "models/0.bin", "stage=01.npz"):
        assert any(".labelguard/props/" in name and part in name for name in seen)


# Negative controls: natural mistakes, each of which the comparison must find.


@pytest.mark.slow
def test_a_job_that_leaks_is_found(tmp_path, monkeypatch):
    whole = finish.compute_training_key

    def by_input(job, *rest):
        assert job.source
        raw = b"".join(Path(name).read_bytes() for name in job.source)
        return whole(job, *rest) + str(sum(raw) % 97)

    monkeypatch.setattr(finish, "compute_training_key", by_input)
    found = differences(tmp_path, "pairs", SCENARIOS["retraining"], ALL)
    assert any("history.jsonl" in name for name in found)


@pytest.mark.quick("uls")
@pytest.mark.parametrize("name", ["uls", "els", "els-group", "aup"])
def test_without_noise_a_run_tells_labels(name, tmp_path, monkeypatch):
    """The control: what is released follows from the sums, so they have to be noisy."""
    monkeypatch.setattr(Coins, "noisy", lambda self, total, *_: total.astype(object))
    found = differences(tmp_path, "pairs", SCENARIOS[name], ALL)
    for part in ("data.parquet", "head.npz", "trained.npz"):
        assert any(file.endswith(part) for file in found)


@pytest.mark.quick("rows_keep_the_order_of_the_file", "preferences_are_counted")
@pytest.mark.parametrize(
    "leak",
    [
        leaks.ties_are_dropped,
        leaks.labels_enter_the_key,
        leaks.rows_keep_the_order_of_the_file,
        leaks.preferences_are_counted,
    ],
)
def test_a_leak_is_found(leak, tmp_path, monkeypatch):
    leak(monkeypatch)
    try:
        found = differences(tmp_path, "pairs", SCENARIOS["one run"], ALL)
    except KeyError:  # other rows were drawn: the worlds differ in what they release
        return
    assert found


@pytest.mark.slow
def test_a_report_that_counts_preferences_is_found(tmp_path, monkeypatch):
    leaks.preferences_are_counted(monkeypatch)
    scenario = replace(SCENARIOS["one run"], afterwards=REPORTS)
    found = differences(tmp_path, "pairs", scenario, ALL)
    assert {"report.html", "report.md", "report.json"} <= set(found)
