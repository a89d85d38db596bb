"""Raw labels leave no trace but the released labels.

Two worlds differ in raw labels (strict labels become ties and back) and in coins, together, so that
the released labels are equal. Then everything else must be equal, byte for byte: releases, cards,
what the commands print, their exit codes, the ledger with its journal, and the private map.

The order of a file may tell its labels too: in one world every file is shuffled, in the other it is
sorted by them. Only the numbers of rows in messages follow the file.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support import exports, leaks
from support.preferences import LAYOUTS, Public, opinions, public
from support.rounds import MORE_ROUNDS
from support.scenarios import ALL, HALF, ONE, SCENARIOS
from support.worlds import Coins, Run, Scenario, differences, observed

from labelguard.jobs import finish

# Label Studio has no ties: who has none here prefers the left.
SAID = {1: 1, 0: 0, None: 1}
ELSEWHERE = ("one run", "more labels later", "bound", "refused", "skips hidden among ties")
# What layouts other than pairs go through.
ELSEWHERE += ("statistic", "statistic of sources", "props", "uls")
CASES = [
    pytest.param(layout, SCENARIOS[name], who, id=f"{layout}: {name}: {len(who)} labelers")
    for layout in LAYOUTS
    for name in (SCENARIOS if layout == "pairs" else ELSEWHERE)
    for who in ((ALL, ONE) if layout == "pairs" and name in ELSEWHERE[:2] else (ALL,))
]


@pytest.mark.quick(
    "pairs: more labels later: 7 labelers",
    "pairs: refused: 7 labelers",
    "pairs: later turns: 7 labelers",
    "pairs: statistic: 7 labelers",
    "pairs: props: 7 labelers",
    "pairs: somebody leaves: 7 labelers",
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


# Random tables, layouts, types, orders and mechanisms: only released labels may differ.
#
# In every case labels and coins are changed together (see `worlds`). Planted leaks show what is
# found: an order, a type and a count that follow from labels.

CASES, FEW_TABLES, A_LEAK_SHOWS = 120 * MORE_ROUNDS, 3, 60
LEARNING = ("--features", "length", "--components", "1", "--ridge", "1")
STATISTIC = ("--mechanism", "statistic", *LEARNING, "--whitening", "0.5", "--floor", "0.01")
STATISTIC += ("--clip-quantile", "0.5")
MECHANISMS = ((), ("--max-labels-per-labeler", "4"), STATISTIC, ("--mechanism", "props", *LEARNING))
UNITS = ((), ("--unit", "item"))
LABELS: tuple[Callable[[pa.ChunkedArray], pa.ChunkedArray], ...] = (
    lambda column: column,
    lambda column: column.cast(pa.int64()),
    lambda column: column.cast(pa.float32()),
    lambda column: column.cast(pa.string()),
    lambda column: column.cast(pa.string()).dictionary_encode(),
    lambda column: column.cast(pa.bool_()),
)
AFTERWARDS = (("budget", "journal", "--json"), ("release", "show", "--json"), ("policy", "show"))


@dataclass(frozen=True)
class Case:
    """One random table and what is done with it."""

    layout: str
    scenario: Scenario
    who: list[int]
    asked: Public
    seed: int

    @classmethod
    def of(cls, number):
        """The case of a number."""
        rng = np.random.default_rng([17, number])
        labelers, items = int(rng.integers(1, 6)), int(rng.integers(2, 12))
        rows = int(rng.integers(labelers, 5 * labelers + 4))
        asked = Public(rng.integers(0, labelers, rows), rng.integers(0, items, rows))
        layout = str(rng.choice(list(LAYOUTS)))
        unit = UNITS[rng.integers(len(UNITS))]
        options = (*MECHANISMS[rng.integers(len(MECHANISMS))], *unit)
        if "--mechanism" not in options and not unit:
            options += ("--uses", "2")
        runs = [Run(options, rows=int(rng.integers(1, rows + 1)), exits=None)]
        if rng.random() < 0.5:
            runs.append(Run((*options, "--exhausted", "drop"), exits=None))
        kinds = [".parquet"] if layout == "rankings" else [".parquet", ".csv", ".jsonl"]
        scenario = Scenario(
            tuple(runs),
            labelers=not unit or bool(rng.random() < 0.5),
            suffix=str(rng.choice(kinds)),
            dressed=_choose_dress(rng),
            afterwards=AFTERWARDS,
        )
        who = rng.choice(labelers, int(rng.integers(1, labelers + 1)), replace=False).tolist()
        return cls(layout, scenario, who, asked, int(rng.integers(1 << 30)))

    def leaks(self, here):
        """What follows from labels; an exception counts as well."""
        given = (self.layout, self.scenario, self.who, self.asked, self.seed)
        return differences(here, *given)


def _choose_dress(rng):
    """Another type of labels, columns in another order, large pieces or small ones."""
    kind = LABELS[rng.integers(len(LABELS))]
    order, pieces = rng.random(20), int(rng.integers(1, 5))

    def dressed(table):
        if "label" in table.column_names:
            place = table.column_names.index("label")
            table = table.set_column(place, "label", kind(table["label"]))
        names = table.column_names
        table = table.select([names[i] for i in np.argsort(order[: len(names)])])
        return pa.Table.from_batches(table.to_batches(max(1, table.num_rows // pieces)))

    return dressed


@pytest.mark.parametrize(
    "cases", [range(FEW_TABLES), pytest.param(range(CASES), marks=pytest.mark.slow)]
)
def test_no_case_tells_a_label(cases, tmp_path):
    found = {number: leaks for number in cases if (leaks := Case.of(number).leaks(tmp_path))}
    assert not found


# Negative controls: an order, a type, and a count that follow from labels.


@pytest.mark.quick("rows_keep_the_order_of_the_file")
@pytest.mark.parametrize(
    ("leak", "first"),
    [
        (leaks.rows_keep_the_order_of_the_file, 8),
        (leaks.types_follow_values, 11),
        (leaks.ties_are_not_counted, 0),
    ],
)
def test_a_planted_leak_is_found(leak, first, tmp_path, monkeypatch):
    """Cases before the `first` one that shows it do not."""
    leak(monkeypatch)
    for number in range(first, A_LEAK_SHOWS):
        try:
            if Case.of(number).leaks(tmp_path):
                return
        except KeyError:  # other rows were drawn
            return
    raise AssertionError(f"{A_LEAK_SHOWS} cases do not show it")
