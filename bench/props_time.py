"""PROPS with a language model against training on randomized response alone: seconds, by part.

    python bench/props_time.py                        # a GPT-2 of 4 layers, width 128, on a CPU
    python bench/props_time.py --shape gpt2-medium    # on a GPU; or gpt2-large

As in the paper's comparison (props, Table 5) there are 500 pairs, in batches of 4. Training alone
is one stage over all pairs, with the same trainer, tokens and cached reference: as many optimizer
steps, up to the last batch of each stage. Weights and letters are random, which costs no time.

Every run is a process of its own, whose imports are not counted; variants take turns. Seconds are
the clock's on a GPU; on a CPU they are the process's own (of all its threads), which other programs
do not change: set OMP_NUM_THREADS=1. Medians over rounds.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _measure import measure, report
from numpy.typing import NDArray

from labelguard.learning.learners import LearnerOptions
from labelguard.mechanisms.props_stages import ReleasedLabels, run_stages
from labelguard.text import no_progress

SHAPES = {
    "tiny": {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 258},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257},
    "gpt2-medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16, "vocab_size": 50257},
    "gpt2-large": {"n_layer": 36, "n_embd": 1280, "n_head": 20, "vocab_size": 50257},
}
PARTS = ("prepare", "reference", "training", "scoring")
WANTED_TOTAL, WANTED_FORWARD, PAPER_TOTAL = 1.25, 1.2, 7.4
FLIP = 0.3


def save_model(directory: str, shape: str, tokens: int) -> None:
    """A GPT-2 of random weights, and a tokenizer to which every byte is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>", "<pad>"]
    numbers = {name: number for number, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>"
    ).save_pretrained(directory)
    set_seed(0)
    config = GPT2Config(n_positions=tokens, bos_token_id=256, eos_token_id=256, **SHAPES[shape])
    GPT2LMHeadModel(config).save_pretrained(directory)


def letters(pairs: int, tokens: int) -> pa.Table:
    """Pairs of random letters; a prompt is a quarter of the tokens, one token ends a text."""
    draw = np.random.default_rng(0)

    def texts(length: int) -> list[str]:
        codes = draw.integers(97, 123, (pairs, length)).astype(np.uint8)
        return [row.tobytes().decode() for row in codes]

    response = tokens - tokens // 4 - 1
    columns = (texts(tokens // 4), texts(response), texts(response))
    return pa.table(dict(zip(("prompt", "first", "second"), columns, strict=True)))


def labels(pairs: int, stages: int) -> ReleasedLabels:
    """A released label of each pair."""
    draw, rows = np.random.default_rng(1), np.arange(pairs)
    released = draw.integers(0, 2, pairs).astype(np.uint8)
    return ReleasedLabels(rows, rows, rows % stages, rows % 5, released, np.full(pairs, FLIP))


class Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, part: str, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step, whose seconds count as the part's."""

        @functools.wraps(step)
        def counted(*arguments: Any) -> Any:
            start = now()
            result = step(*arguments)
            self.seconds[part] += now() - start
            return result

        return counted


def now() -> float:
    """Seconds that count: the clock's, once the GPU is done; without one, this process's own."""
    import torch

    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def staged(directory: str, pairs: int, tokens: int, stages: int, epochs: int) -> dict[str, Any]:
    """Seconds of all parts, and of scoring the last stage once more beside a bare forward pass."""
    from labelguard_trainer.training import learners
    from labelguard_trainer.training.stages import StageLearner, StageModel

    clock = Clock()
    StageLearner.fit = clock.timed("training", StageLearner.fit)  # type: ignore[method-assign]
    asked = Path(directory) / f"{epochs}.yaml"
    asked.write_text(f"num_train_epochs: {epochs}\n")
    options = LearnerOptions(str(Path(directory) / "base"), None, str(asked))
    start = now()
    prepared = clock.timed("prepare", learners.dpo)(letters(pairs, tokens), options)
    rows = labels(pairs, stages)
    with tempfile.TemporaryDirectory(dir=directory) as work:
        learner = prepared.open(Path(work), no_progress)
        clock.timed("reference", lambda: learner.reference)()
        scored = StageModel.__call__
        StageModel.__call__ = clock.timed("scoring", scored)  # type: ignore[method-assign]
        models = [r.scorer for r in run_stages(prepared.inputs, rows, learner, stages=stages)]
        total = now() - start
        StageModel.__call__ = scored  # type: ignore[method-assign]
        forward = against_forward(models[-1], rows.rows_of(stages - 1)) if stages > 1 else None
    size = (pairs + stages - 1) // stages
    steps = stages * epochs * -(-size // 4)
    return {**clock.seconds, "total": total, "forward": forward, "steps": steps}


def against_forward(model: Any, pairs: NDArray[np.intp]) -> float:
    """Seconds of scoring pairs over those of a bare forward pass, medians of five in turn."""
    model(pairs[:1])  # it is loaded
    seconds: dict[str, list[float]] = {"scoring": [], "forward": []}
    for _ in range(5):
        for part, step in (("scoring", model), ("forward", functools.partial(forward, model))):
            start = now()
            step(pairs)
            seconds[part].append(now() - start)
    return statistics.median(seconds["scoring"]) / statistics.median(seconds["forward"])


def forward(model: Any, pairs: NDArray[np.intp]) -> None:
    """Both sides of all pairs through the model, and nothing else."""
    import torch

    trainer, rows = model._trainer, model.learner.training.rows(pairs)
    size = trainer.args.per_device_eval_batch_size
    policy = trainer.model.eval()
    sides = [
        [a + b for a, b in zip(rows["prompt_ids"], rows[name], strict=True)]
        for name in ("chosen_ids", "rejected_ids")
    ]
    with torch.no_grad(), trainer.accelerator.autocast():
        for at in range(0, len(pairs), size):
            ids = torch.tensor(sides[0][at : at + size] + sides[1][at : at + size])
            policy(ids.to(policy.device), use_cache=False)


def main() -> None:
    """Run all variants and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    variants = [(epochs, stages) for epochs in asked.epochs for stages in (1, 2, 3)]
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        measure(save_model, f"{directory}/base", asked.shape, asked.tokens)
        for _ in range(asked.rounds):
            for epochs, stages in variants:
                run = measure(staged, directory, asked.pairs, asked.tokens, stages, epochs)
                found[epochs, stages].append(run["result"])
    columns = ["epochs", "stages", "steps", *PARTS, "total", "ratio", "scoring / forward"]
    report(f"props_time {asked.shape}", columns, [row(found, *variant) for variant in variants])
    print(
        f"wanted for 2 stages, 3 epochs: ratio <= {WANTED_TOTAL} (the paper's: {PAPER_TOTAL}); "
        f"scoring / forward <= {WANTED_FORWARD}"
    )


def row(found: dict[tuple[int, int], list[dict[str, Any]]], epochs: int, stages: int) -> list[Any]:
    """One line of the table: medians; the ratio is that of totals to one stage's."""

    def median(part: str, of: int = stages) -> float:
        return statistics.median(run.get(part) or 0.0 for run in found[epochs, of])

    seconds = [round(median(part), 2) for part in (*PARTS, "total")]
    ratio = round(median("total") / median("total", of=1), 3)
    forward = round(median("forward"), 2) if stages > 1 else "-"
    return [epochs, stages, int(median("steps")), *seconds, ratio, forward]


if __name__ == "__main__":
    main()
