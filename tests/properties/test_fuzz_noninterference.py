"""Random tables, layouts, types, orders and mechanisms: only released labels may differ.

In every case labels and coins are changed together (see `worlds`). Planted leaks show what is
found: an order, a type and a count that follow from labels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from support import leaks
from support.preferences import LAYOUTS, Public
from support.rounds import MORE_ROUNDS
from support.worlds import Run, Scenario, differences

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
