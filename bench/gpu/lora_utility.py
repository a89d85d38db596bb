"""`lora_utility.py` at 124M parameters: ULS by LoRA against soft labels of a head, at ε = 3.

    bench/gpu.sh lora-utility        # after `bench/gpu.sh pretrain`

200 and 2,000 simulated labelers give ten labels each on one half of the dialogues, and reward
models are judged by prompts that nobody trained on. There are two planted preferences: longer
answers of longer words; and those where the prompt is longer than most, but shorter ones where it
is not, of which features of answers alone cannot say anything. Rates are usual ones, not tuned.

Writes lora-utility.json; runs that are in it are not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from lora import tables
from lora.problem import Setup, labelled
from lora.training import CLEAN, WAYS, scored
from utility.tables import plain

from gpu import corpus, outputs
from gpu.corpus import Dialogues

EPSILON = 3.0
_SEED = 0
_NAME = "lora-utility"


@dataclass(frozen=True)
class Size:
    """How labelers are and how models learn."""

    setup: Setup
    labelers: tuple[int, ...]


FULL = Size(
    Setup("r=8,alpha=16", max_length=512, batch=32, rate=1e-3, soft_rate=2e-4), (200, 2_000)
)
TINY = Size(
    Setup("r=2,alpha=4", max_length=512, batch=4, each=4, steps=1, cohort=3, limit=2, soft_steps=1),
    (8,),
)


def longer(pairs: Dialogues) -> Dialogues:
    """The planted preference of `corpus`: longer answers of longer words."""
    return pairs


def longer_to_long(pairs: Dialogues) -> Dialogues:
    """The same where the prompt is longer than most, and the opposite elsewhere."""
    length = np.array([len(prompt) for prompt in pairs.prompt])
    sign = np.where(length > np.median(length), 1.0, -1.0)
    return replace(pairs, advantage=sign * pairs.advantage)


PREFERENCES: dict[str, Callable[[Dialogues], Dialogues]] = {
    "longer": longer,
    "longer to long prompts": longer_to_long,
}


def runs(size: Size) -> Iterator[tuple[str, int, str]]:
    """Preference, labelers and way of every run."""
    for preference in PREFERENCES:
        for labelers in size.labelers:
            for way in WAYS:
                yield preference, labelers, way


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is missing; prints numbers, never a text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    outputs.add_argument(parser)
    options = parser.parse_args(arguments)
    size = TINY if options.tiny else FULL
    found = corpus.corpus(tiny=options.tiny)
    path = options.out / f"{_NAME}.json"
    told = json.loads(path.read_text()) if path.exists() else _begun()
    for preference, labelers, way in runs(size):
        name = f"{preference}, {labelers} labelers, {way}"
        if name not in told["runs"]:
            epsilon = None if way == CLEAN else EPSILON
            asked = {"preference": preference, "labelers": labelers, "way": way, "epsilon": epsilon}
            scores = _scored(found, size.setup, options.out / "base", asked)
            told["runs"][name] = {**asked, **scores}
            outputs.write(options.out, _NAME, told)
    print(plain(tables.table(told["runs"].values())), end="\n\n")
    print(plain(tables.times(told["runs"].values())))


def _scored(
    found: corpus.Corpus, setup: Setup, base: Path, asked: dict[str, Any]
) -> dict[str, Any]:
    planted = PREFERENCES[asked["preference"]]
    whole = len(found.training) // setup.each * setup.each  # see `labelled`
    pairs = planted(found.training).take(np.arange(whole))
    problem = labelled(base, setup, pairs, planted(found.probes), asked["labelers"], _SEED)
    return scored(problem, asked["way"], asked["epsilon"])


def _begun() -> dict[str, Any]:
    return {"machine": outputs.machine(), "labelers": "simulated", "runs": {}}


if __name__ == "__main__":
    main()
