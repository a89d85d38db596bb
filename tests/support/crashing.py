"""Runs labelguard in processes that die by SIGKILL at a chosen step; used by `support.crashes`.

A step is the moment before or after something reaches the disk: a flush, a rename, a
file, a ledger transaction; and where a command is there to remove, a removal.
"""

import functools
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy.engine.default
from support import forks, world
from support.releases import make_release

from labelguard.jobs.run import retrain
from labelguard.ledger import ledger
from labelguard.project import erasure, policies, restore
from labelguard.project.opening import init
from labelguard.project.private_map import PrivateMap
from labelguard.release.drawn import DrawnRelease
from labelguard.release.privatize import Run


class Steps:
    """Counts steps; at one of them this process dies, or the disk is full from there on."""

    def __init__(self, kill_at, full_at):
        self.taken, self.kill_at, self.full_at = 0, kill_at, full_at

    def step(self):
        self.taken += 1
        if self.taken == self.kill_at:
            die()
        if self.taken == self.full_at:
            fill()

    def around(self, owner, name):
        whole = getattr(owner, name)

        @functools.wraps(whole)
        def counted(*arguments, **options):
            self.step()
            result = whole(*arguments, **options)
            self.step()
            return result

        setattr(owner, name, counted)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fill(size=0):
    """No file takes a byte beyond `size` any more."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def die_after(owner, name, here=lambda *_, **__: True):
    """Die once that function has done its work, if `here` says so of its arguments."""
    whole: Callable[..., Any] = getattr(owner, name)

    def fatal(*arguments, **options):
        result = whole(*arguments, **options)
        if here(*arguments, **options):
            die()
        return result

    setattr(owner, name, fatal)


# What puts something on the disk; a `Path` is replaced and unlinked by these too.
DISK: tuple[tuple[Any, str], ...] = (
    (os, "fsync"),
    (os, "replace"),
    (pq, "write_table"),
    (pq.ParquetWriter, "close"),
    (sqlalchemy.engine.default.DefaultDialect, "do_commit"),
)
REMOVALS: tuple[tuple[Any, str], ...] = ((os, "unlink"), (os, "rmdir"))
AFTER = {
    "charge": (ledger.Ledger, "charge"),
    "start": (ledger.Ledger, "mark_reading"),
    "complete": (PrivateMap, "complete"),
    "draw": (Run, "draw"),
    "publish": (DrawnRelease, "finish_and_write"),
    "commit": (ledger.Ledger, "commit"),
}


def perform(command, project):
    """Do one command in a project: what both a process that dies and one that does not would do."""
    options = command.get("options", {})
    if command["do"] == "init":
        return init(project)
    if command["do"] == "policy":
        return policies.new(command["name"], project=project, **options)
    if command["do"] == "activate":
        return policies.activate(command["name"], project=project)
    if command["do"] == "leave":
        return erasure.remove_labeler(project=project, **options)
    if command["do"] == "restore":
        shown = Path(os.environ["LABELGUARD_KEYS"]) / "project.key"
        keys = None if shown.exists() else Path(command["copied"])
        return restore.restore(command["source"], project, keys=keys)
    if command["do"] == "retrain":
        return retrain(project / "job.yaml")
    return make_release(command["source"], project=project, **options)


def run(job):
    """Do one job; returns the number of steps, if it survives."""
    os.environ["LABELGUARD_LEDGER_URL"] = job.get("ledger", "")
    os.environ["LABELGUARD_KEYS"] = job.get("keys", "")
    os.environ.update(job.get("environ", {}))
    sys.path[:0] = [job["site"]] if "site" in job else []
    patch = pytest.MonkeyPatch()  # never undone: this process is about to end
    world.fix_clock(patch)
    if not job.get("fresh_randomness"):
        world.fix_randomness(patch)
    if "user" in job:  # what is imported late may not be readable then
        perform(job, Path(job["rehearsal"]))
        os.setgid(job["user"])
        os.setuid(job["user"])
    if "file_size" in job:
        fill(job["file_size"])
    steps = Steps(job.get("kill_at"), job.get("full_at"))
    for owner, name in DISK + (REMOVALS if job["do"] in ("leave", "restore") else ()):
        steps.around(owner, name)
    if job.get("kill_after"):
        die_after(*AFTER[job["kill_after"]])
    perform(job, Path(job["project"]))
    return steps.taken


def work(job):
    """Do one job; how many steps it took, or what went wrong."""
    try:
        return 0, str(run(job))
    except BaseException as error:
        return 0, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    forks.serve(work)
