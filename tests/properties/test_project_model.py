"""Whole projects through random lives: policies, releases, re-runs, exhausted labelers, crashes.

The model knows which labels of whom were asked for, so it knows what must be charged; what it does
not know (which labels fitted into the last places) it leaves open.
"""

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run
from support.databases import dump
from support.preferences import STATISTIC, Public, opinions, pairs, spent
from support.releases import make_release
from support.rounds import MORE_ROUNDS

import labelguard
import labelguard as lg
from labelguard.errors import BudgetExceeded, LabelguardError, PolicyError
from labelguard.ledger.ledger import Ledger
from labelguard.project import policies
from labelguard.project.opening import OpenProject
from labelguard.release.drawn import DrawnRelease
from labelguard.release.privatize import Run
from labelguard.release.writer import Release
from labelguard.report import overview

LABELERS, ITEMS = 3, 5
PLACES: dict[str, int] = {"rr": 3, "statistic": 2}
BLOCK = 2
# What everyone thinks of every item: it never changes.
LABELS = opinions(LABELERS * ITEMS, 1).reshape(LABELERS, ITEMS, -1)
MOMENTS = {
    "charged": (Ledger, "charge"),
    "started": (Ledger, "mark_reading"),
    "drawn": (Run, "draw"),
    "published": (DrawnRelease, "finish_and_write"),
}
asked_rows = st.sets(st.tuples(st.integers(0, LABELERS - 1), st.integers(0, ITEMS - 1)), min_size=1)


class Died(BaseException):
    """The process ended here."""


@dataclass
class Budget:
    """What was used under one policy, as far as the model knows."""

    used: Counter[tuple[str, int]] = field(default_factory=Counter)


class ProjectMachine(RuleBasedStateMachine):
    """Commands in a project of three labelers."""

    def __init__(self):
        super().__init__()
        shm = Path("/dev/shm")
        self.directory = Path(tempfile.mkdtemp(prefix="lg-", dir=shm if shm.is_dir() else None))
        self.project = lg.init(self.directory, max_epsilon=1e3, max_delta=0.9)
        self.made = 0
        self.budget: Budget | None = None
        self.released: set[tuple[int, int]] = set()
        self.unsure: set[int] = set()
        self.done: list[tuple[dict[str, Any], str]] = []
        self.new_policy()
        self.activate()

    def teardown(self):
        shutil.rmtree(self.directory)

    @rule()
    def new_policy(self):
        self.made += 1
        policies.new(
            f"p{self.made}",
            epsilon=3.0,
            delta=1e-5,
            allow=[f"rr:uses=3,block={BLOCK}", "statistic:releases=2"],
            project=self.project,
        )

    @rule()
    def activate(self):
        """The newest draft comes into force: everyone has all places again, at a further price."""
        name = f"p{self.made}"
        unfinished = [r.id for r in overview.list_releases(self.project.state) if self.is_begun(r)]
        if policies.show(name, self.project).state == "active":
            before = overview.read_journal(self.project.state)[-1]
            assert policies.activate(name, self.project).closes is None
            assert overview.read_journal(self.project.state)[-1] == before
            return
        if unfinished:
            with pytest.raises(PolicyError):
                policies.activate(name, self.project)
            return
        policies.activate(name, self.project)
        self.budget = Budget()
        self.done.clear()  # their commands are other requests now

    @staticmethod
    def is_begun(record):
        return record.state in ("computing", "drawn")

    def command(self, rows, kind, drop):
        chosen = sorted(rows)
        asked = Public(np.array([u for u, _ in chosen]), np.array([i for _, i in chosen]))
        table = pairs(asked, np.array([LABELS[u, i] for u, i in chosen]))
        options = {"exhausted": "drop" if drop else "refuse", "workers": 1}
        options |= STATISTIC if kind == "statistic" else {"mechanism": "rr"}
        return {"source": table, "project": self.project, **options}

    @rule(rows=asked_rows, drop=st.booleans())
    def randomize(self, rows, drop):
        """New labels are charged a place for every two, where they fit; others cost nothing."""
        assert self.budget
        used, people = self.budget.used, {u for u, _ in rows}
        labels = Counter(u for u, _ in rows - self.released)
        new = {u: -(-labels[u] // BLOCK) for u in range(LABELERS)}
        known = not people & self.unsure
        left = {u: PLACES["rr"] - used["rr", u] for u in range(LABELERS)}
        # Who is charged for the first time meets the bound; only then can they be exhausted.
        fits = all(not used["rr", u] or new[u] <= left[u] for u in people)
        command = self.command(rows, "rr", drop)
        was = self.settle()
        try:
            release = make_release(**command)
        except BudgetExceeded:
            assert not drop and not (known and fits)
            assert self.settle() == was
            return
        except PolicyError as error:  # everyone who was asked is exhausted
            assert "no label fits" in str(error)
            return
        assert release.reused or drop or not known or fits
        if release.reused:
            assert self.settle() == was
            return
        after = self.places("rr")
        for u in range(LABELERS):
            taken = after[u] - used["rr", u]
            if known and u in people:
                assert taken == min(new[u], left[u])
            elif u not in people:
                assert taken == 0
            if u in people and taken < new[u]:
                self.unsure.add(u)  # which of their labels fitted is the mechanism's choice
            used["rr", u] = after[u]
        self.released |= {row for row in rows if row[0] not in self.unsure}
        self.done.append((command, release.id))

    @rule(rows=asked_rows, drop=st.booleans())
    def sum_up(self, rows, drop):
        """A statistic takes one place of everyone with a label in it, or none of the exhausted."""
        assert self.budget
        before = self.places("statistic")
        was = self.settle()
        command = self.command(rows, "statistic", drop)
        try:
            release = make_release(**command)
        except (BudgetExceeded, PolicyError):
            assert self.settle() == was
            return
        after = self.places("statistic")
        people = {u for u, _ in rows}
        for u in range(LABELERS):
            assert before[u] <= after[u] <= before[u] + (u in people and not release.reused)
        if not release.reused:
            self.done.append((command, release.id))

    @precondition(lambda self: self.done)
    @rule(data=st.data())
    def same_command_again(self, data):
        command, release_id = data.draw(st.sampled_from(self.done), label="command")
        was = self.settle()
        again: Release = make_release(**command)
        assert (again.id, again.reused) == (release_id, True)
        assert self.settle() == was

    @rule(
        rows=asked_rows,
        kind=st.sampled_from(["rr", "statistic"]),
        moment=st.sampled_from(sorted(MOMENTS)),
    )
    def die_and_come_back(self, rows, kind, moment):
        """What a crash left is finished by the same command, with the places it had taken."""
        assert self.budget
        owner, name = MOMENTS[moment]
        whole = getattr(owner, name)

        def fatal(*arguments, **options):
            whole(*arguments, **options)
            raise Died

        command = self.command(rows, kind, True)
        with patch.object(owner, name, fatal):
            try:
                make_release(**command)
            except Died:
                pass
            except (BudgetExceeded, PolicyError):
                return
            else:
                return  # it had been made before
        taken = self.places(kind)
        release = make_release(**command)
        assert self.places(kind) == taken and not release.reused
        self.done.append((command, release.id))
        if kind == "rr":
            for u, _ in rows:
                self.unsure.add(u)
            for u in range(LABELERS):
                self.budget.used["rr", u] = taken[u]

    def places(self, kind):
        """Places that everyone uses under the policy in force."""
        opened = OpenProject.open(self.project.state)
        keys, ledger = opened.keys, opened.ledger
        people = keys.hash_labelers(
            self.project.namespace, [f"worker {u}" for u in range(LABELERS)]
        )
        table = ledger.releases.labelers(kind)
        found = {tuple(key): int(n) for key, n in zip(table.labelers, table.used, strict=True)}
        return [found.get(tuple(key), 0) for key in people]

    def settle(self):
        """The ledger but for the number of the job, and what was reserved and never used."""
        tables = dump(self.project.ledger_url)
        return {name: tables[name] for name in ("charges", "counters", "policies", "prices")}

    @invariant()
    def the_ledger_holds_and_nobody_is_above_an_allowance(self):
        verdict = overview.verify(self.project.state)
        assert verdict.ok, verdict.fault
        for kind, places in PLACES.items():
            assert max(self.places(kind)) <= places
        assert self.budget is not None
        assert self.places("rr") == [self.budget.used["rr", u] for u in range(LABELERS)]
        charged = sum(map(sum, (self.places(kind) for kind in PLACES)))
        assert spent(self.project) == charged


@pytest.mark.slow
def test_every_life_of_a_project_is_as_the_model_tells():
    run(
        ProjectMachine,
        settings=settings(
            max_examples=25, stateful_step_count=12, suppress_health_check=list(HealthCheck)
        ),
    )


# Random tables and flags: a release or one clear line, never a traceback, never half a release.

FEW, MANY = 6, 150 * MORE_ROUNDS
EXAMPLES = pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def bound(examples):
    return settings(
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TEXT = st.sampled_from(["a", "b", "c", "", "\0", "🦊", " ", "7.0", "NaN", "null"]) | st.text(
    max_size=3
)

LABEL = st.sampled_from([0, 1, 0, 1, 0.5, None]) | st.floats()
ROLES: dict[str, Any] = {
    "labeler_id": st.sampled_from(["x", "y", "z"]) | TEXT | st.none(),
    "prompt": TEXT | st.none(),
    "response_a": TEXT,
    "response_b": TEXT,
    "label": LABEL,
    "tie": st.none() | st.booleans(),
    "chosen": TEXT,
    "rejected": TEXT,
    "responses": st.lists(TEXT | st.none(), max_size=4),
    "ranks": st.lists(st.integers(0, 3) | st.none(), max_size=4),
    "item_id": st.sampled_from(["i", "j", "k", "", None]),
    "ranking_id": st.sampled_from(["r", "s", "", None]),
    "submitted_at": st.sampled_from(["2024-01-01", "2024-01-02T00:00:00Z", "3", "x", None]),
    "record_id": TEXT | st.none(),
    "duration_s": st.floats(),
}
LAYOUTS = [
    ["labeler_id", "prompt", "response_a", "response_b", "label"],
    ["labeler_id", "prompt", "chosen", "rejected"],
    ["labeler_id", "prompt", "responses", "ranks"],
]
OPTIONAL = ["tie", "item_id", "ranking_id", "submitted_at", "record_id", "duration_s"]
FLAGS = st.fixed_dictionaries(
    {"epsilon": st.sampled_from([3.0, 3.0, 0.1, 0.0]), "delta": st.sampled_from([1e-5, 0.0, 1.0])},
    optional={
        "max_labels_per_labeler": st.integers(0, 9),
        "ties": st.sampled_from(["coin", "zero", "drop"]),
        "tie_status_public": st.booleans(),
        "bad_rows": st.sampled_from(["stop", "quarantine", "quarantine"]),
        "exhausted": st.sampled_from(["refuse", "drop"]),
        "unit": st.sampled_from(["labeler", "item"]),
        "again": st.booleans(),
        "columns": st.dictionaries(
            st.sampled_from(["label", "prompt", "labeler_id", "nonsense"]),
            st.sampled_from(["label", "prompt", "tie", "duration_s"]),
            max_size=1,
        ),
    },
)


@st.composite
def tables(draw):
    names = list(draw(st.sampled_from(LAYOUTS)))
    names += draw(st.lists(st.sampled_from(OPTIONAL), unique=True, max_size=3))
    if draw(st.integers(0, 9)) == 0:
        names.remove(draw(st.sampled_from(names)))
    return draw(st.lists(st.fixed_dictionaries({name: ROLES[name] for name in names}), max_size=6))


def attempt(project, source, **options):
    """Privatize; a refusal is one line that leaves the releases as they were."""
    before = overview.list_releases(project.state)
    try:
        made = make_release(source, project=project, workers=1, **options)
    except LabelguardError as error:
        assert "\n" not in str(error)
        assert overview.list_releases(project.state) == before
        assert len(list(project.releases.iterdir())) == len(before)
    else:
        assert pq.read_metadata(made.path / "data.parquet").num_rows == made.card["counts"]["rows"]
        assert all(
            release.state == "committed" for release in overview.list_releases(project.state)
        )
    assert overview.verify(project.state).ok


@EXAMPLES
def test_random_tables_and_flags(examples):
    drawn = given(first=tables(), second=tables(), flags=FLAGS, as_json=st.booleans())
    bound(examples)(drawn(_random_tables_and_flags))()


def _random_tables_and_flags(first, second, flags, as_json):
    with tempfile.TemporaryDirectory() as directory:
        project = labelguard.init(Path(directory))
        for rows in (first, second):
            path = Path(directory) / "in.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            attempt(project, path if as_json else pa.Table.from_pylist(rows), **flags)


@EXAMPLES
def test_random_damage_to_files(examples):
    drawn = given(
        suffix=st.sampled_from([".csv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.zst"]),
        cut=st.integers(0, 400),
        noise=st.binary(max_size=6),
    )
    bound(examples)(drawn(_random_damage_to_files))()


def _random_damage_to_files(suffix, cut, noise):
    rows = [
        {"labeler_id": str(n % 3), "prompt": f"p{n}", "response_a": "a", "response_b": "b"}
        | {"label": n % 2}
        for n in range(8)
    ]
    table = pa.Table.from_pylist(rows)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"x{suffix}"
        kind = suffix.split(".")[1]
        compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            lines = [",".join(table.column_names)] + [",".join(map(str, r.values())) for r in rows]
            if kind == "jsonl":
                lines = [json.dumps(row) for row in rows]
            with pa.output_stream(str(path), compression=compression) as stream:
                stream.write("\n".join(lines).encode())
        content = path.read_bytes()
        path.write_bytes(content[:cut] + noise + content[cut + len(noise) :])
        attempt(labelguard.init(Path(directory)), path, epsilon=3, delta=1e-5)
