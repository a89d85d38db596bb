"""A learner that stops at gates: a real one, whose stages begin when a test lets them.

It is a package with an entry point of its own, for this process and for others. Its model is a
logistic fit of the bytes of both responses, kept in files of the release's own directory.
"""

import contextlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.codings import OPTION
from support.commands import FIRST
from support.doors import install
from support.releases import make_release
from support.surveys import survey

# Seconds after which a learner that does not come to a gate fails its test.
PATIENCE = 60
BUDGET: dict[str, Any] = {"epsilon": 20.0, "delta": 1e-5}

CODE = Path(__file__).with_name("learner_at_gates.py").read_text(encoding="utf-8")


def installed(directory, patch, code=CODE):
    """The learner `gated`, in a directory for packages; without gates none is shut."""
    install(directory / "site", "labelguard.learners", "gated", code, patch)
    return directory / "site"


@dataclass(frozen=True)
class Gates:
    """Gates before the stages of a learner; all are open at first."""

    directory: Path
    site: Path

    @classmethod
    def install(cls, directory, patch, code=CODE):
        """The learner `gated`, with its gates."""
        (directory / "gates").mkdir()
        return cls(directory / "gates", installed(directory, patch, code))

    @property
    def options(self):
        """What `privatize` is asked for."""
        return BUDGET | {"mechanism": "props", "learner": "gated", "model": str(self.directory)}

    def close(self, stage):
        (self.directory / f"closed-{stage}").touch()

    def open(self, stage):
        (self.directory / f"closed-{stage}").unlink()

    def break_at(self, stage):
        """The learner ends with an error there."""
        (self.directory / f"broken-{stage}").touch()

    def wait_at(self, stage, alive=lambda: True):
        """Wait until the learner stands at a gate."""
        deadline = time.monotonic() + PATIENCE
        while not (self.directory / f"at-{stage}").exists():
            assert time.monotonic() < deadline and alive(), "the learner never came to its gate"
            time.sleep(0.01)

    @contextlib.contextmanager
    def learning(self, raw, project, **options):
        """A release that stands at the gate of its second stage, while this is open; then it goes
        on and comes to its end.
        """
        self.close(1)
        with ThreadPoolExecutor(1) as pool:
            asked = self.options | options
            made = pool.submit(make_release, raw, project=project, **asked)
            try:
                self.wait_at(1, lambda: not made.done() or made.result())
                yield made
            finally:
                self.open(1)

    def process(self, source, project, *more):
        """`labelguard privatize` of a file in a process of its own."""
        asked = [f"--{name}={value}" for name, value in self.options.items()]
        command = [
            sys.executable,
            "-m",
            "labelguard",
            "privatize",
            str(source),
            *FIRST,
            *OPTION,
            *asked,
        ]
        path = os.pathsep.join([str(self.site), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [*command, "--project", str(project.state), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )


def labels(labelers=30):
    """A survey without numeric columns."""
    return survey(labelers=labelers).drop("score_a", "score_b", "length_a", "length_b")
