"""Raw labels leave no trace but the released labels.

Two worlds differ in raw labels (strict labels become ties and back) and in coins, together, so that
the released labels are equal. Then everything else must be equal, byte for byte: releases, cards,
what the commands print, their exit codes, the ledger with its journal, and the private map.

The order of a file may tell its labels too: in one world every file is shuffled, in the other it is
sorted by them. Only the numbers of rows in messages follow the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.preferences import LAYOUTS, opinions, public
from support.worlds import Coins, Run, Scenario, differences, world

from labelguard.ingest import ordering, staging
from labelguard.release import planning
from labelguard.terms import LABEL_TIE

HALF, MOST = 42, 70
ROOM = ("--max-labels-per-labeler", "40")
TWICE = ("--max-labels-per-labeler", "24")
FEW = ("--max-labels-per-labeler", "6")
WORDS = ("--max-labels-per-labeler", "40", "--skips", "tie", "--label-values", "a=left,b=right")
BOUND = ("--max-labels-per-labeler", "10")
FEATURES = ("--features", "text+length", "--components", "4", "--ridge", "2")
TUNED = ("--mechanism", "statistic", "--features", "text+length")
STATISTIC = (*TUNED, *FEATURES[2:], "--whitening", "0.5", "--floor", "0.01")
STATISTIC += ("--clip-quantile", "0.5")
NUMBERS = (*STATISTIC[:3], "columns:score+length", *STATISTIC[4:])
WINDOWS = (*STATISTIC, "--releases", "2")
PROPS = ("--mechanism", "props", *FEATURES, "--stages", "3")
SOFT = ("--combine", "soft")


def blanks(table: pa.Table) -> pa.Table:
    """The table with blanks for ties (of rankings: where all are ties), and words for labels."""
    rows = table.to_pylist()
    for row in rows:
        if "label" in row:
            row["label"] = {1: "left", 0: " right"}.get(row["label"], " ")
            del row["tie"]
        elif len(set(row.get("ranks", (1, 2)))) == 1:
            row["ranks"] = None
    return pa.Table.from_pylist(rows)


SCENARIOS = {
    "one run": Scenario((Run(),)),
    "one run, as JSON": Scenario((Run(("--json", "-o", "{output}")),)),
    "ternary ties": Scenario((Run(("--ties", "ternary")), Run(("--ties", "ternary"), HALF))),
    "public ties dropped": Scenario(
        (Run(("--ties", "drop", "--tie-status-public")),), public_ties=True
    ),
    "public ties kept": Scenario(
        (Run(("--ties", "half", "--tie-status-public")),), public_ties=True
    ),
    "quarantine": Scenario((Run(("--bad-rows", "quarantine"), bad=True),)),
    "stopped by a bad row": Scenario((Run(bad=True, exits=1), Run())),
    "bound": Scenario((Run(BOUND),)),
    "more labels later": Scenario((Run(ROOM, HALF), Run(ROOM))),
    "fewer labels later": Scenario((Run(), Run(rows=HALF))),
    "refused": Scenario((Run(BOUND, MOST), Run(BOUND, exits=3))),
    "exhausted labels dropped": Scenario((Run(BOUND, MOST), Run((*BOUND, "--exhausted", "drop")))),
    "again": Scenario((Run(rows=HALF), Run(("--again", "--exhausted", "drop"), HALF))),
    "again refused": Scenario(
        (Run(TWICE), Run((*TWICE, "--again")), Run((*TWICE, "--again"), exits=3))
    ),
    "the same command twice": Scenario((Run(), Run())),
    "single labels": Scenario(
        (Run(("--unit", "item", *FEW), HALF), Run(("--unit", "item", *FEW))), labelers=False
    ),
    "skips hidden among ties": Scenario(
        (Run((*WORDS, "--bad-rows", "quarantine"), HALF, bad=True), Run(WORDS)), dressed=blanks
    ),
    "one worker": Scenario((Run(("--workers", "1")),)),
    "chats": Scenario((Run(ROOM, HALF), Run(ROOM)), suffix=".jsonl"),
    "statistic": Scenario((Run(STATISTIC), Run(STATISTIC))),
    "statistic, tuned, as JSON": Scenario((Run(("--json", *TUNED)),)),
    "statistic of numeric columns": Scenario((Run(NUMBERS), Run(NUMBERS))),
    "statistic of numbers as text": Scenario((Run(NUMBERS),), suffix=".csv"),
    "statistic in windows": Scenario((Run(WINDOWS, HALF), Run(WINDOWS), Run(WINDOWS, HALF))),
    "statistic refused": Scenario((Run(STATISTIC, HALF), Run(STATISTIC, exits=3))),
    "statistic of single labels": Scenario((Run((*STATISTIC, "--unit", "item")),), labelers=False),
    "statistic of public ties": Scenario(
        (Run((*STATISTIC, "--ties", "drop", "--tie-status-public")),), public_ties=True
    ),
    "props": Scenario((Run(PROPS, HALF), Run(PROPS, HALF), Run((*PROPS, *SOFT), HALF))),
    "props after rr": Scenario((Run(), Run(PROPS))),
}
DROP = ("--exhausted", "drop")
JOINT = (
    "policy new joint --epsilon 2 --delta 9e-6 --allow rr:labels=40 --allow statistic:releases=2 "
    "--closing-points 2",
    "policy activate joint --yes",
)
LATER = (
    "policy new later --epsilon 1 --delta 1e-6 --allow rr:labels=12",
    "policy activate later --yes",
)
GROUPED = (
    "policy groups groups.csv",
    "policy new groups --epsilon 3 --delta 1e-5 --unit group --allow rr:labels=30 "
    "--allow statistic:releases=1",
    "policy activate groups --yes",
)
SCENARIOS |= {
    "a joint policy": Scenario(
        (
            Run(rows=HALF, before=(*JOINT, "policy check {input}")),
            Run(STATISTIC, HALF),
            Run(STATISTIC, before=("policy check {input} --mechanism statistic",)),
            Run(("--exhausted", "drop"), before=("policy check {input}",)),
        )
    ),
    "a change of policy": Scenario((Run(rows=HALF, before=JOINT), Run(before=LATER))),
    "groups": Scenario((Run(before=GROUPED), Run(STATISTIC))),
    "questions": Scenario((Run((*ROOM, "--question", "safer?"), HALF), Run((*ROOM, *DROP), HALF))),
    "somebody leaves": Scenario(
        (
            Run(ROOM, HALF),
            Run(ROOM, before=("labeler retire 'worker 1' --yes", "labeler erase 'worker 2' --yes")),
        )
    ),
    "a backup and other names": Scenario(
        (
            Run(ROOM, HALF),
            Run(ROOM, before=("project backup backup.tar.zst", "project rotate-pseudonyms")),
        )
    ),
}
ONE, ALL = [2], list(range(7))
CASES = [
    pytest.param(layout, scenario, who, id=f"{layout}: {name}: {len(who)} labelers")
    for layout in LAYOUTS
    for name, scenario in SCENARIOS.items()
    for who in (ALL, *([ONE] if name in ("one run", "more labels later", "refused") else []))
    if not (layout == "rankings" and (scenario.suffix != ".parquet" or "--again" in str(scenario)))
]


@pytest.mark.parametrize(("layout", "scenario", "labelers"), CASES)
def test_nothing_but_released_labels_depends_on_raw_labels(
    layout: str, scenario: Scenario, labelers: list[int], tmp_path: Path
) -> None:
    assert differences(tmp_path, layout, scenario, labelers) == []


def test_the_comparison_sees_everything_a_project_holds(tmp_path: Path) -> None:
    asked = public()
    seen = world(
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
    monkeypatch.setattr(ordering, "canonical", lambda table: np.arange(table.num_rows))
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
