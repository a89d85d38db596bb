"""The learner `gated`, as the package that `gated.installed` makes of this file brings it."""

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
