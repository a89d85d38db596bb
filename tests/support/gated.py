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

from support.commands import FIRST
from support.doors import install
from support.surveys import survey

import labelguard as lg

# Seconds after which a learner that does not come to a gate fails its test.
PATIENCE = 60
BUDGET: dict[str, Any] = {"epsilon": 20.0, "delta": 1e-5}

CODE = """
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelguard.errors import LabelguardError, PolicyError
from labelguard.learning import heads


def door(pairs, options):
    if options.model is None:
        raise PolicyError("gated takes a --model")
    sides = [pairs[name].to_pylist() for name in ("first", "second")]
    first, second = (np.array([_bytes(text) for text in side]) for side in sides)
    return Prepared(first - second, {"base": "bytes", "lora": options.lora}, Path(options.model))


def _bytes(text):
    return np.bincount(np.frombuffer(text.encode(), np.uint8), minlength=128)[:128] / 8.0


@dataclass
class Prepared:
    inputs: np.ndarray
    identity: dict
    gates: Path

    def open(self, directory, progress):
        return Learner(directory, self.gates)

    def files(self, scorer, directory):
        model = directory / "model"
        (model / "weights").mkdir(parents=True)
        (model / "weights" / "theta.bin").write_bytes(scorer.theta.tobytes())
        (model / "config.json").write_text(json.dumps({"bytes": len(scorer.theta)}))
        return (model,)


@dataclass
class Scorer:
    theta: np.ndarray
    path: Path

    def __call__(self, pairs):
        return heads.margins(pairs, self.theta)

    def state(self):
        return {"name": np.frombuffer(self.path.name.encode(), np.uint8)}


@dataclass
class Learner:
    directory: Path
    gates: Path

    def fit(self, pairs, targets, probabilities, init):
        number = 0 if init is None else 1 + int(init.path.stem)
        if self.gates.is_dir():
            (self.gates / f"at-{number}").touch()
        while (self.gates / f"closed-{number}").exists():
            time.sleep(0.01)
        if (self.gates / f"broken-{number}").exists():
            raise LabelguardError("the learner broke")
        toward = None if init is None else init.theta
        theta = heads.fit_flipped(pairs, targets, probabilities, 1.0, "forward", toward=toward)
        path = self.directory / f"{number}.bin"
        path.write_bytes(theta.tobytes())
        return Scorer(theta, path)

    def restore(self, state):
        path = self.directory / state["name"].tobytes().decode()
        return Scorer(np.frombuffer(path.read_bytes()), path)
"""


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
            made = pool.submit(lg.privatize, raw, project=project, **asked)
            try:
                self.wait_at(1, lambda: not made.done() or made.result())
                yield made
            finally:
                self.open(1)

    def process(self, source, project, *more):
        """`labelguard privatize` of a file in a process of its own."""
        asked = [f"--{name}={value}" for name, value in self.options.items()]
        command = [sys.executable, "-m", "labelguard", "privatize", str(source), *FIRST, *asked]
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
