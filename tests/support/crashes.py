"""Processes that are killed at a chosen step (`crashing.py`), and how their projects look then."""

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import databases, forks, gated, preferences
from support.copies import copy_project
from support.crashing import perform
from support.preferences import files, opinions, pairs, public, write

from labelguard.errors import ProjectBusy
from labelguard.project import attempts, policies
from labelguard.project.project import find
from labelguard.release.writer import Release
from labelguard.report import overview

# Seconds after which a server that has not noticed a lost connection fails the test.
PATIENCE = 60
Command = dict[str, Any]
BUDGET: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5}
RR = {"mechanism": "rr", "workers": 1}
IMPLICIT_RR = RR | BUDGET | {"uses": 2}
STATISTIC = preferences.STATISTIC | {"workers": 1}
ULS = {
    "mechanism": "uls",
    "features": "length",
    "components": 1,
    "sampling_probability": 1.0,
    "steps": 12,
    "workers": 1,
}
INIT: Command = {"do": "init"}
JOINT: Command = {
    "do": "policy",
    "name": "joint",
    "options": BUDGET | {"allow": ["rr:uses=1", "statistic:releases=3"]},
}
ACTIVATE: Command = {"do": "activate", "name": "joint"}
HOLDING_OUT: Command = {
    "do": "policy",
    "name": "joint",
    "options": BUDGET | {"allow": ["statistic:releases=2"], "held_out": 0.5},
}


def privatize(options):
    return {"do": "privatize", "options": options}


@dataclass(frozen=True)
class Scenario:
    """Commands that went well, and the one whose process is killed."""

    before: tuple[Command, ...]
    command: Command


FIRST = privatize(IMPLICIT_RR)
SCENARIOS = {
    "first": Scenario((INIT,), FIRST),
    "again": Scenario((INIT, FIRST), privatize(IMPLICIT_RR | {"again": True, "exhausted": "drop"})),
    "in parts": Scenario((INIT,), privatize(IMPLICIT_RR | {"buckets": 128})),
    "statistic": Scenario((INIT,), privatize(BUDGET | STATISTIC)),
    "uls": Scenario((INIT,), privatize(BUDGET | ULS)),
    "rr under a policy": Scenario((INIT, JOINT, ACTIVATE), privatize(RR)),
    "statistic under a policy": Scenario(
        (INIT, JOINT, ACTIVATE, privatize(RR)), privatize(STATISTIC)
    ),
    "evaluation": Scenario(
        (INIT, HOLDING_OUT, ACTIVATE, privatize(STATISTIC)),
        privatize({"mechanism": "evaluation", "head": "r0001", "workers": 1}),
    ),
    "props with a learner": Scenario(
        (INIT,),
        privatize(
            BUDGET | {"mechanism": "props", "learner": "gated", "model": "nowhere", "workers": 1}
        ),
    ),
    "activation": Scenario((INIT, FIRST, JOINT), ACTIVATE),
}


def crash(*jobs):
    """How processes ended that did these jobs one after the other."""
    return [
        {
            "signal": max(0, -end.code),
            "steps": int(end.answer) if end.answer.isdigit() else 0,
            "error": "" if end.answer.isdigit() else end.answer,
            "printed": end.printed,
        }
        for end in forks.run("support.crashing", *jobs)
    ]


def killed(*jobs):
    """Do these jobs; all of them must end by SIGKILL."""
    ends = crash(*jobs)
    assert [end["signal"] for end in ends] == [9] * len(jobs), ends


def steps_of(job, base, ledger=""):
    """How many steps a job takes that nobody kills; done on a copy of `base`."""
    trial = base.with_name("trial")
    if base.exists():
        copy_project(base, trial)
    [end] = crash(job | {"project": str(trial), "ledger": ledger})
    assert end["signal"] == 0 and end["steps"] > 3, end
    return int(end["steps"])


def seen(project):
    """Everything in a project but how often somebody began to work."""
    home = find(project)
    contents: dict[str, object] = {
        name: data
        for name, data in files(home.state).items()
        if not Path(name).name.startswith("ledger.") and not name.startswith(attempts.FILE)
    }
    tables = databases.dump(home.ledger_url)
    tables["meta"] = [row for row in tables["meta"] if row[0] != "epoch"]
    return contents | tables


def assert_sound(project):
    """The ledger holds."""
    verdict = overview.verify(project)
    assert verdict.ok, verdict.fault


class Ring:
    """Projects with the same past, each with a ledger of its own, on one kind of database."""

    def __init__(self, kind, name, tmp_path, patch):
        scenario = SCENARIOS[name]
        asked = public(labelers=5, per_labeler=6, items=9)
        source = write(pairs(asked, opinions(len(asked), 1)), tmp_path / "small.parquet")
        self._tmp_path, self._patch, self._scenario = tmp_path, patch, scenario
        self._databases = contextlib.ExitStack()
        self._copies: dict[Path, contextlib.ExitStack] = {}
        self._postgres = kind == "postgresql"
        site = gated.installed(tmp_path, patch)
        self.command = scenario.command | {"source": str(source), "site": str(site)}
        self.base, self.ledger = tmp_path / "base", ""
        if self._postgres:
            self.ledger = self._databases.enter_context(databases.fresh(kind, tmp_path))
        self.choose(self.ledger)
        for command in scenario.before:
            perform(command | {"source": str(source)}, self.base)
        self.past = committed(self.base)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._databases.close()

    def choose(self, ledger):
        self._patch.setenv("LABELGUARD_LEDGER_URL", ledger)

    def copy(self, name):
        """A project with this past, and the URL of its ledger."""
        project = copy_project(self.base, self._tmp_path / name)
        if not self._postgres:
            return project, ""
        self._copies[project] = self._databases.enter_context(contextlib.ExitStack())
        return project, self._copies[project].enter_context(databases.copied(self.ledger))

    def discard(self, project):
        """Remove a copy that is no longer looked at."""
        shutil.rmtree(project)
        if project in self._copies:
            self._copies.pop(project).close()

    def is_done(self, project):
        """Whether the command, which would now be another event or an error, has come to its end.

        Others answer what they did.
        """
        if self.command["do"] == "activate":
            return policies.show("joint", project).state == "active"
        return "again" in self.command["options"] and committed(project) > self.past

    def finish(self, project):
        """Do the command in peace."""
        if not self.is_done(project):
            answer = self._perform(project)
            if isinstance(answer, Release):
                assert not preferences.notes(answer)
        elif self.command["do"] == "activate":
            perform(self.command, project)
        else:
            shutil.rmtree(project / ".labelguard" / "work", ignore_errors=True)

    def _perform(self, project):
        """The command, as soon as a server has noticed that its job before is gone."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return perform(self.command, project)
            except ProjectBusy:
                if not self._postgres or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def committed(project):
    return [record.state for record in overview.list_releases(project)].count("committed")


@contextlib.contextmanager
def rounds(kind, name, tmp_path, patch):
    """The ring of a scenario, what its projects must look like in the end, and how many steps."""
    with Ring(kind, name, tmp_path, patch) as ring:
        project, ledger = ring.copy("expected")
        ring.choose(ledger)
        perform(ring.command, project)
        assert_sound(project)
        expected = seen(project)
        trial = databases.copied(ring.ledger) if ring.ledger else contextlib.nullcontext("")
        with trial as other:
            total = steps_of(ring.command, ring.base, other)
        yield ring, expected, total
