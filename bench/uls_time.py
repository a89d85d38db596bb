"""Labeler-level DP-SGD (ULS) and AUP against plain SGD on the same records: what a step costs.

    OMP_NUM_THREADS=1 python bench/uls_time.py              # a GPT-2 of 4 layers on a CPU
    python bench/uls_time.py --model gpt2 --device cuda     # 124M parameters on a GPU

LoRA's matrices of a reward model and of DPO learn from `--records` records a step, which are of
labelers with 1, 4 or 16 of them; texts are random letters, all of one length. Plain SGD is Adam
on the mean loss, in batches of as many pairs, with autograd's gradients of weights. ULS clips,
sums, adds noise and steps, with a pass for each labeler. AUP compares labelers' gradients, leaves
some out, and goes on as ULS.

On a CPU, linear heads come first (`_uls_heads`): milliseconds, and ratios to plain SGD and to the
floor, one product of the cohort's features with a vector.

Each way is a process of its own, whose imports are not counted. Seconds are the clock's on a GPU;
on a CPU they are the process's own, which other programs do not change. Medians over steps, after a
step that is not counted. Peak memory is a step's on a GPU and the whole process's on a CPU.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _uls_heads
import numpy as np
from _measure import measure, report
from props_time import SHAPES, letters, now, save_model

from labelguard.keys.keyring import random_bytes
from labelguard.learning.learners import LearnerOptions

HELD = (1, 4, 16)
"""Records of a labeler."""
BATCH = 16
LORA = "r=8,alpha=16"
WANTED_TIME, WANTED_MEMORY, WANTED_OF_HEADS = 1.3, 1.2, 1.5


def opened(directory: str, kind: Any, held: int, records: int, tokens: int, device: str) -> Any:
    """A LoRA model, and the labelers' records: a pair each."""
    from labelguard_trainer.gradient.language_runs import PreparedLanguage
    from labelguard_trainer.gradient.records import Records

    config = Path(directory) / f"{device}.yaml"
    on_cpu = str(device == "cpu").lower()
    config.write_text(f"per_device_train_batch_size: {BATCH}\nuse_cpu: {on_cpu}\n")
    options = LearnerOptions(str(Path(directory) / "base"), LORA, str(config))
    prepared = PreparedLanguage.of(kind, letters(records, tokens), options)
    rows = np.arange(records)
    return prepared.open(Records(rows, rows // held, -(-records // held), held, "mean"))


def uls(problem: Any, labels: Any) -> Callable[[], None]:
    """A step of ULS over all labelers."""
    units = np.arange(problem._records.population)

    def step() -> None:
        total = problem.clipped_sum(units, labels, 1.0)
        problem.step(problem.add_noise(total, 1.0, random_bytes(32)) / len(units))

    return step


def aup(problem: Any, labels: Any) -> Callable[[], None]:
    """A step of AUP over all labelers, at the usual distance, two clip norms."""
    from labelguard_trainer.gradient import aup as published

    units = np.arange(problem._records.population)

    def step() -> None:
        gradients = problem.gradients(units, labels)
        published.concentration(gradients, 2.0)
        kept = published.select_inliers(gradients, 2.0, np.full(len(units), 0.5))
        total = gradients[kept].sum(axis=0) / max(1, int(kept.sum()))
        problem.step(problem.add_noise(total, 1.0, random_bytes(32)))

    return step


def sgd(problem: Any, labels: Any) -> Callable[[], None]:
    """A step of Adam on the mean loss of all records."""
    import torch

    optimizer = torch.optim.AdamW(problem._parameters, 1e-4, weight_decay=0.0)

    def step() -> None:
        mean_gradient(problem, labels)
        optimizer.step()
        optimizer.zero_grad()

    return step


def mean_gradient(problem: Any, labels: Any) -> None:
    """Leave the gradient of the mean loss with the parameters, as autograd makes it."""
    import torch
    from labelguard_trainer.losses import soft

    for at in range(0, len(labels), BATCH):
        rows = np.arange(at, min(at + BATCH, len(labels)))
        target = problem._tensor(labels[rows])
        margins = problem._first_side_margins(problem._records.pairs[rows])
        loss = soft(margins, target, torch.zeros_like(target)).sum() / len(labels)
        loss.backward()


WAYS = {"SGD": sgd, "ULS": uls, "AUP": aup}


def timed(
    directory: str, kind: str, way: str, records: int, tokens: int, steps: int, device: str
) -> list[dict[str, float]]:
    """Seconds and peak gigabytes of a step, for each number of records of a labeler."""
    import torch

    labels = np.random.default_rng(0).choice([0.0, 0.5, 1.0], records)
    found = []
    for held in HELD:
        problem = opened(directory, kind, held, records, tokens, device)
        step = WAYS[way](problem, labels)
        step()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(steps):
            start = now()
            step()
            seconds.append(now() - start)
        found.append({"seconds": statistics.median(seconds), "peak_gb": _peak(device)})
    return found


def _peak(device: str) -> float:
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def lora(directory: str, records: int, tokens: int, steps: int, device: str) -> list[list[Any]]:
    """Rows of the table: language models with LoRA."""
    rows = []
    for kind in ("reward", "dpo"):
        found = {
            way: measure(timed, directory, kind, way, records, tokens, steps, device)["result"]
            for way in WAYS
        }
        for held, *ways in zip(HELD, *found.values(), strict=True):
            plain = ways[0]
            for way, one in zip(found, ways, strict=True):
                time, memory = (one[name] / plain[name] for name in ("seconds", "peak_gb"))
                told = [round(one["seconds"], 4), round(one["peak_gb"], 3)]
                rows.append([f"{kind}, LoRA", held, way, *told, round(time, 3), round(memory, 3)])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all ways and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", choices=SHAPES, default="tiny")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--records", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    asked = parser.parse_args(arguments)
    if asked.device == "cpu":
        columns = ["model", "records each", "way", "ms", "to SGD", "to the floor"]
        report("uls_time heads", columns, _uls_heads.rows())
        print(f"wanted of ULS: <= {WANTED_OF_HEADS} of SGD", end="\n\n")
    with tempfile.TemporaryDirectory() as directory:
        measure(save_model, f"{directory}/base", asked.model, asked.tokens)
        rows = lora(directory, asked.records, asked.tokens, asked.steps, asked.device)
    columns = ["model", "records each", "way", "seconds", "peak GB", "time ratio", "memory ratio"]
    report(f"uls_time {asked.model} {asked.device}", columns, rows)
    print(f"wanted of ULS: time ratio <= {WANTED_TIME}, memory ratio <= {WANTED_MEMORY}")


if __name__ == "__main__":
    main()
