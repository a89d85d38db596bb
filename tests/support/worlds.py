"""Two worlds that differ in raw labels and in coins, together, so that releases are equal."""

import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from labelguard_trainer.gradient import aup
from numpy.typing import NDArray
from support import world
from support.codings import choose_coding_by_names
from support.commands import FIRST
from support.preferences import LISTED, dump, files, labels, opinions, public, write
from support.receivers import SECRET
from support.tools import connected

from labelguard.answers.segments import Segments
from labelguard.cli.main import main
from labelguard.jobs import finish
from labelguard.keys.keyring import Purpose
from labelguard.mechanisms import statistic
from labelguard.project.project import find
from labelguard.release.mechanisms import rr

PRICE = ("--epsilon", "3", "--delta", "1e-5")
AFTERWARDS = (
    ("budget", "show"),
    ("budget", "show", "--json"),
    ("budget", "journal"),
    ("budget", "journal", "--json"),
    ("budget", "verify"),
    ("labeler", "show", "worker 1"),
    ("release", "list"),
    ("release", "show"),
    ("release", "show", "--json"),
    ("release", "verify"),
    ("doctor",),
    ("policy", "show"),
    ("policy", "show", "--json"),
    ("labeler", "show"),
    ("budget", "export", "-o", "ledger.json"),
)


@dataclass(frozen=True)
class Run:
    """One `privatize`: how many of the rows it gets, its options, and its exit code."""

    options: tuple[str, ...] = ()
    rows: int | None = None
    bad: bool = False
    # None: with whichever code.
    exits: int | None = 0
    # The labels are in a tool, from which they are pulled.
    ingested: bool = False
    # Commands that come first; {input} is the path of this run's labels.
    before: tuple[str, ...] = ()
    # It is `retrain` of this job instead, with {input} in it.
    job: str = ""


@dataclass(frozen=True)
class Scenario:
    """A sequence of runs in one project."""

    runs: tuple[Run, ...]
    labelers: bool = True
    public_ties: bool = False
    suffix: str = ".parquet"
    # How labels and texts are written down, whatever they say.
    dressed: Callable[[pa.Table], pa.Table] = lambda table: table
    # What is looked at when all is done.
    afterwards: tuple[tuple[str, ...], ...] = AFTERWARDS


@dataclass
class Coins:
    """Outcomes of the draws, by who draws what: written in one world, read in the other.

    Noise counts as a draw: a statistic comes out as it did in the first world.
    """

    outcomes: dict[bytes, int]
    replayed: bool
    statistics: list[tuple[str, NDArray[np.int64]]] = field(default_factory=list)

    def wrap(self, draw):
        def drawn(given, coins, row_keys, blocks):
            # Of one release: its randomness tells it from others. Who is in a block, and the first
            # of them, are public.
            release = coins.draw(Purpose.ORDER, np.zeros((1, 2), np.uint64)).tobytes()
            leading = row_keys[np.unique(blocks.of, return_index=True)[1]]
            law = [blocks.threshold, blocks.labels, *leading.T]
            columns = [*row_keys.T, *(column[blocks.of] for column in law)]
            rows = np.stack([column.astype(np.uint64) for column in columns], axis=1)
            names = [release + row.tobytes() for row in rows]
            if self.replayed:
                return np.array([self.outcomes[name] for name in names], np.uint8)
            released = draw(given, coins, row_keys, blocks)
            self.outcomes.update(zip(names, released.tolist(), strict=True))
            return released

        return drawn

    def noisy(self, total, grid, nonce):
        if not self.replayed:
            self.statistics.append((repr(grid), statistic_noisy(total, grid, nonce)))
            return self.statistics[-1][1]
        public, released = self.statistics.pop(0)
        assert public == repr(grid)
        return released


def concentration(gradients, distance):
    """So far from the threshold that no noise matters: when `aup` halts is released, as noise is.

    It halts at once if the distance is tiny, whatever the labels are, and else never.
    """
    return 1e6 if distance > 1e-2 else -1e6


statistic_noisy = statistic.add_noise


def observed(here, layout, scenario, asked, ranks, coins, order="shuffled"):
    """Everything that can be seen of a project in which `ranks` were the raw labels."""
    here.mkdir()
    seen: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        world.fix(patch, world.repeatable_bytes())
        patch.chdir(here)
        patch.setattr(rr, "randomize", coins.wrap(rr.randomize))
        patch.setattr(statistic, "add_noise", coins.noisy)
        patch.setattr(aup, "concentration", concentration)
        told: list[object] = []
        patch.setattr(finish, "_deliver", lambda settings, message: told.append(message))
        patch.setenv("LABELGUARD_NOTIFY_SECRET", SECRET)

        def invoke(*arguments):
            result = CliRunner().invoke(main, arguments, catch_exceptions=False)
            said = (result.exit_code, result.stdout, re.sub(r"row \d+", "row _", result.stderr))
            seen[f"step {len(seen)}: {' '.join(arguments)}"] = said
            return result.exit_code

        assert invoke("init") == 0
        if any(run.ingested for run in scenario.runs):
            # What is sealed under fresh randomness tells nothing, and so does its digest.
            patch.setattr(Segments, "_digest", lambda self, name, data: f"{name}{len(data):032x}")
            _, desk = connected(find(here), tool_of(here), patch)
        Path("links.csv").write_text("labeler_id,same_as\nworker 0,worker 1\nworker 2,worker 3\n")
        for number, run in enumerate(scenario.runs):
            table = LISTED[layout](asked[: run.rows], ranks[: run.rows], labelers=scenario.labelers)
            table = _damaged(table) if run.bad else table
            table = scenario.dressed(table)
            table = table.take(pa.array(ORDERS[order](ranks[: run.rows])))
            path = here / f"in{number}{scenario.suffix}"
            source = [path.name]
            if run.ingested:
                desk.fill(table.to_pylist())
                assert invoke("pull", "desk") == 0, seen
                source = []
            else:
                write(table, path)
            coding = choose_coding_by_names(table.column_names)
            coded = ("--label-values", coding) if coding and not run.ingested else ()
            for command in run.before:
                words = shlex.split(command.format(input=path.name))
                assert invoke(*words, *(coded if words[0] == "privatize" else ())) == 0, seen
            options = [option.format(output=here / "output") for option in run.options]
            if run.job:
                Path("job.yaml").write_text(run.job.replace("{input}", path.name))
                code = invoke("retrain", "job.yaml", *options)
            else:
                first = [word for word in FIRST if word != "--once" or "--uses" not in options]
                by = [] if "--mechanism" in options else ["--mechanism", "rr"]
                coded = () if "--label-values" in options else coded
                code = invoke("privatize", *first, *by, *source, *PRICE, *coded, *options)
            path.unlink(missing_ok=True)
            assert run.exits in (None, code), seen
        for arguments in scenario.afterwards:
            invoke(*arguments)
        # Rows that were set aside are raw; only that they were is visible.
        seen |= {
            name: len(data) if "/labels/" in name else data  # sealed
            for name, data in files(here).items()
            if ".labelguard/quarantine/" not in name
        }
        seen |= dump(here / ".labelguard")
        seen["told"] = told
        seen["directories"] = sorted(map(str, here.rglob("*")))
    shutil.rmtree(here)
    return seen


ORDERS: dict[str, Callable[[NDArray[np.int64]], NDArray[np.intp]]] = {
    "by label": lambda ranks: np.lexsort([*ranks.T, labels(ranks)]),
    "shuffled": lambda ranks: np.random.default_rng(5).permutation(len(ranks)),
}


def tool_of(here):
    """A directory beside a world for the tool that it pulls from: what is in it is raw."""
    path = here.with_name(f"{here.name}-tool")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def _damaged(table):
    """The table with two rows that lack public content."""
    rows = table.to_pylist()
    rows[3]["prompt"] = rows[5]["prompt"] = None
    return pa.Table.from_pylist(rows, table.schema)


def other_opinions(asked, ranks, labelers, *, public_ties):
    """Labels of a world in which these labelers think otherwise."""
    changed = opinions(len(asked), seed=99)
    if public_ties:  # a tie stays a tie, for every pair of responses: best and worst change places
        changed = 4 - ranks
    affected = np.isin(asked.labeler, labelers)[:, None]
    return np.where(affected, changed, ranks)


def differences(here, layout, scenario, labelers, asked=None, seed=1):
    """What differs between a world and the one in which `labelers` labelled otherwise."""
    if asked is None:
        asked = public()
        asked = asked[np.r_[: len(asked), :20]]  # some rows are labelled a second time, anyhow
    ranks = opinions(len(asked), seed=seed)
    others = other_opinions(asked, ranks, labelers, public_ties=scenario.public_ties)
    coins = Coins({}, replayed=False)
    one = observed(here / "world", layout, scenario, asked, ranks, coins, "shuffled")
    coins.replayed = True
    two = observed(here / "world", layout, scenario, asked, others, coins, "by label")
    return [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]
