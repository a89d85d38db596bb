"""Raw labels leave no trace but the released labels.

Two worlds differ in raw labels (strict labels become ties and back) and in coins, together, so that
the released labels are equal. Then everything else must be equal, byte for byte: releases, cards,
what the commands print, their exit codes, the ledger with its journal, and the private map.

The order of a file may tell its labels too: in the second world every file is sorted by them, and
in a third it is shuffled. Only the numbers of rows in messages follow the file.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from preferences import (
    LAYOUTS,
    Public,
    dump,
    files,
    labels,
    opinions,
    public,
    repeatable_bytes,
    write,
)

from labelguard import ordering, planning, randomizing, staging
from labelguard.cli import main
from labelguard.labels import LABEL_TIE
from labelguard.mechanisms import statistic
from labelguard.mechanisms.coins import Purpose

PRICE = ("--epsilon", "3", "--delta", "1e-5")
AFTERWARDS = (
    ("budget", "show"),
    ("budget", "show", "--json"),
    ("budget", "journal"),
    ("budget", "journal", "--json"),
    ("budget", "verify"),
    ("budget", "labeler", "worker 1"),
    ("release", "list"),
    ("release", "show"),
    ("release", "show", "--json"),
    ("release", "verify"),
    ("doctor",),
    ("policy", "list"),
    ("policy", "show", "--json"),
    ("labeler", "list"),
    ("budget", "anchor"),
    ("budget", "export", "-o", "ledger.json"),
)


@dataclass(frozen=True)
class Run:
    """One `privatize`: how many of the rows it gets, its options, and its exit code."""

    options: tuple[str, ...] = ()
    rows: int | None = None
    bad: bool = False
    exits: int = 0
    before: tuple[str, ...] = ()
    """Commands that come first; {input} is the path of this run's labels."""


@dataclass(frozen=True)
class Scenario:
    """A sequence of runs in one project."""

    runs: tuple[Run, ...]
    labelers: bool = True
    public_ties: bool = False
    suffix: str = ".parquet"


HALF, MOST = 42, 70
ROOM = ("--max-labels-per-labeler", "40")
TWICE = ("--max-labels-per-labeler", "24")
BOUND = ("--max-labels-per-labeler", "10")
FEATURES = ("--features", "text+length", "--components", "4", "--ridge", "2")
TUNED = ("--mechanism", "statistic", "--features", "text+length")
STATISTIC = (*TUNED, *FEATURES[2:], "--whitening", "0.5", "--floor", "0.01")
STATISTIC += ("--clip-quantile", "0.5")
NUMBERS = (*STATISTIC[:3], "columns:score+length", *STATISTIC[4:])
WINDOWS = (*STATISTIC, "--releases", "2")
PROPS = ("--mechanism", "props", *FEATURES, "--stages", "3")
SOFT = ("--combine", "soft")
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
        (Run(("--unit", "item"), HALF), Run(("--unit", "item"))), labelers=False
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


@dataclass
class Coins:
    """Outcomes of the draws, by who draws what: written in one world, read in the other.

    Noise counts as a draw: a statistic comes out as it did in the first world.
    """

    outcomes: dict[bytes, int]
    replayed: bool
    statistics: list[tuple[str, NDArray[np.int64]]] = field(default_factory=list)

    def wrap(self, draw: Callable[..., NDArray[np.uint8]]) -> Callable[..., NDArray[np.uint8]]:
        def drawn(
            given: NDArray[np.uint8], coins: Any, row_keys: NDArray[np.uint64], price: Any
        ) -> NDArray[np.uint8]:
            # Of one release: its randomness tells it from others.
            release = coins.draw(Purpose.FLIP, np.zeros((1, 2), np.uint64)).tobytes()
            rows = np.column_stack([row_keys, price]).astype(np.uint64)
            names = [release + row.tobytes() for row in rows]
            if self.replayed:
                return np.array([self.outcomes[name] for name in names], np.uint8)
            released = draw(given, coins, row_keys, price)
            self.outcomes.update(zip(names, released.tolist(), strict=True))
            return released

        return drawn

    def noisy(self, total: NDArray[np.int64], grid: Any, nonce: bytes) -> NDArray[np.int64]:
        if not self.replayed:
            self.statistics.append((repr(grid), statistic_noisy(total, grid, nonce)))
            return self.statistics[-1][1]
        public, released = self.statistics.pop(0)
        assert public == repr(grid)
        return released


statistic_noisy = statistic.noisy


def world(
    here: Path,
    layout: str,
    scenario: Scenario,
    asked: Public,
    ranks: NDArray[np.int64],
    coins: Coins,
    order: str = "as asked",
) -> dict[str, object]:
    """Everything that can be seen of a project in which `ranks` were the raw labels."""
    here.mkdir()
    seen: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelguard.keys.random_bytes", repeatable_bytes())
        patch.setattr("labelguard.clock.now", lambda: "2026-01-01T00:00:00Z")
        patch.chdir(here)
        for name in ("randomize", "randomize_ternary"):
            patch.setattr(randomizing, name, coins.wrap(getattr(randomizing, name)))
        patch.setattr(statistic, "noisy", coins.noisy)

        def invoke(*arguments: str) -> int:
            result = CliRunner().invoke(main, arguments, catch_exceptions=False)
            said = (result.exit_code, result.stdout, re.sub(r"row \d+", "row _", result.stderr))
            seen[f"step {len(seen)}: {' '.join(arguments)}"] = said
            return result.exit_code

        assert invoke("init") == 0
        Path("groups.csv").write_text(
            "labeler_id,group_id\n" + "".join(f"worker {n},{n // 2}\n" for n in range(5))
        )
        for number, run in enumerate(scenario.runs):
            table = LAYOUTS[layout](
                asked[: run.rows], ranks[: run.rows], labelers=scenario.labelers
            )
            table = _damaged(table) if run.bad else table
            table = table.take(pa.array(ORDERS[order](ranks[: run.rows])))
            path = here / f"in{number}{scenario.suffix}"
            write(table, path)
            for command in run.before:
                assert invoke(*shlex.split(command.format(input=path.name))) == 0, seen
            options = [option.format(output=here / "output") for option in run.options]
            code = invoke("privatize", path.name, *PRICE, *options)
            path.unlink()
            assert code == run.exits, seen
        for arguments in AFTERWARDS:
            invoke(*arguments)
        # Rows that were set aside are raw; only that they were is visible.
        seen |= {k: v for k, v in files(here).items() if ".labelguard/quarantine/" not in k}
        seen |= dump(here / ".labelguard")
        seen["directories"] = sorted(map(str, here.rglob("*")))
    shutil.rmtree(here)
    return seen


ORDERS: dict[str, Callable[[NDArray[np.int64]], NDArray[np.intp]]] = {
    "as asked": lambda ranks: np.arange(len(ranks)),
    "by label": lambda ranks: np.lexsort([*ranks.T, labels(ranks)]),
    "shuffled": lambda ranks: np.random.default_rng(5).permutation(len(ranks)),
}


def _damaged(table: pa.Table) -> pa.Table:
    """The table with two rows that lack public content."""
    rows = table.to_pylist()
    rows[3]["prompt"] = None
    for column in ("response_a", "chosen"):
        if column in rows[5]:
            rows[5][column] = ""
    if "responses" in rows[5]:
        rows[5]["responses"][1] = ""
    return pa.Table.from_pylist(rows, table.schema)


def other_opinions(
    asked: Public, ranks: NDArray[np.int64], labelers: list[int], *, public_ties: bool
) -> NDArray[np.int64]:
    """Labels of a world in which these labelers think otherwise."""
    changed = opinions(len(asked), seed=99)
    if public_ties:  # a tie stays a tie, for every pair of responses: best and worst change places
        changed = 4 - ranks
    affected = np.isin(asked.labeler, labelers)[:, None]
    return np.where(affected, changed, ranks)


def differences(here: Path, layout: str, scenario: Scenario, labelers: list[int]) -> list[str]:
    """What differs between a world and those in which `labelers` labelled otherwise."""
    asked = public()
    asked = asked[np.r_[: len(asked), :20]]  # some rows are labelled a second time, anyhow
    ranks = opinions(len(asked), seed=1)
    others = other_opinions(asked, ranks, labelers, public_ties=scenario.public_ties)
    before, after = labels(ranks), labels(others)
    assert (before != after).any()
    if not scenario.public_ties and len(labelers) > 1:
        assert ((before == 0.5) & (after != 0.5)).any() and ((before != 0.5) & (after == 0.5)).any()
    coins = Coins({}, replayed=False)
    one = world(here / "world", layout, scenario, asked, ranks, coins)
    coins.replayed = True
    found = set()
    for order in ("by label", "shuffled"):
        again = replace(coins, statistics=list(coins.statistics))
        two = world(here / "world", layout, scenario, asked, others, again, order)
        found |= {name for name in {*one, *two} if one.get(name) != two.get(name)}
    return sorted(found)


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
