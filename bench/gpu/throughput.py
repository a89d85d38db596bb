"""Our DPOTrainer against TRL's: seconds of a step, tokens a second, peak memory.

    bench/gpu.sh throughput                   # 124M and GPT-2-large shapes; on one GPU
    bench/gpu.sh throughput --shapes small    # on a CPU, a minute

Both train the same random weights on the same random letters, with the log-probabilities of the
reference computed beforehand, and they take turns. The first steps of each turn are not counted.
Writes throughput.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset
from labelguard_trainer import DPOConfig, DPOTrainer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
    set_seed,
)

from gpu import outputs

WANTED = 1.05
WARM_UP = 2


@dataclass(frozen=True)
class Shape:
    """A GPT-2, and batches of `batch` pairs with sides of `length` tokens."""

    layers: int
    width: int
    heads: int
    batch: int
    length: int = 512
    vocabulary: int = 50_257


SHAPES = {
    "tiny": Shape(1, 32, 2, batch=2, length=32, vocabulary=258),
    "small": Shape(4, 256, 4, batch=8, length=128, vocabulary=8_192),
    "gpt2": Shape(12, 768, 12, batch=16),
    "gpt2-large": Shape(36, 1_280, 20, batch=8),
}
TRAINERS = {"ours": (DPOConfig, DPOTrainer), "TRL": (trl.DPOConfig, trl.DPOTrainer)}


class Steps(TrainerCallback):  # type: ignore[misc]
    """Seconds of every step but the first few, from one end to the next.

    On a CPU these are seconds of the process, so that other work on the machine does not count.
    """

    def __init__(self) -> None:
        self._ends: list[float] = []

    @property
    def seconds(self) -> list[float]:
        """One for each counted step."""
        return [float(s) for s in np.diff(self._ends)[WARM_UP - 1 :]]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Called by the trainer."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            self._ends.append(time.perf_counter())
        else:
            self._ends.append(time.process_time())


def compare(shape: Shape, *, steps: int, rounds: int) -> dict[str, Any]:
    """Medians over the steps of all rounds, and ours over TRL's."""
    seconds: dict[str, list[float]] = {name: [] for name in TRAINERS}
    peak: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        base = _saved(shape, Path(directory) / "base")
        texts = _letters(shape, (steps + WARM_UP) * shape.batch)
        for _ in range(rounds):
            for name in TRAINERS:
                found, memory = _turn(name, shape, base, texts, Path(directory) / name)
                seconds[name] += found
                peak[name] = max(memory, peak.get(name, 0.0))
    median = {name: float(np.median(values)) for name, values in seconds.items()}
    tokens = 2 * shape.batch * shape.length
    return {
        "step_seconds": median,
        "tokens_per_second": {name: round(tokens / value) for name, value in median.items()},
        "peak_gb": peak,
        "steps": len(seconds["ours"]),
        "ratio": median["ours"] / median["TRL"],
    }


def _turn(
    name: str, shape: Shape, base: Path, texts: Dataset, output: Path
) -> tuple[list[float], float]:
    """Seconds of each step, and gigabytes at the most (0 without a GPU)."""
    config, trainer = TRAINERS[name]
    on_gpu = torch.cuda.is_available()
    more = {"non_private": True} if name == "ours" else {}
    arguments = config(
        str(output),
        num_train_epochs=1,
        per_device_train_batch_size=shape.batch,
        max_length=shape.length,
        precompute_ref_log_probs=True,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )
    steps = Steps()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trains = trainer(str(base), args=arguments, train_dataset=texts, callbacks=[steps])
    trains.remove_callback(PrinterCallback)
    trains.train()
    return steps.seconds, torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0


def _saved(shape: Shape, directory: Path) -> Path:
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>", "<pad>"]
    numbers = {name: number for number, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>"
    ).save_pretrained(directory)
    set_seed(0)
    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=256,
        eos_token_id=256,
        pad_token_id=257,
    )
    GPT2LMHeadModel(config).save_pretrained(directory)
    return directory


def _letters(shape: Shape, pairs: int) -> Dataset:
    """Random letters, a token each; the end of a text is a token too."""
    draw = np.random.default_rng(0)
    prompt = shape.length // 4

    def texts(length: int) -> list[str]:
        codes = draw.integers(97, 123, (pairs, length)).astype(np.uint8)
        return [row.tobytes().decode() for row in codes]

    lengths = {"prompt": prompt, "chosen": shape.length - prompt - 1}
    lengths["rejected"] = lengths["chosen"]
    return Dataset.from_dict({name: texts(length) for name, length in lengths.items()})


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each shape, and writes them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["gpt2", "gpt2-large"])
    parser.add_argument("--steps", type=int, default=10, help="counted steps of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    outputs.add_argument(parser)
    options = parser.parse_args(arguments)
    shapes = ["tiny"] if options.tiny else options.shapes
    steps, rounds = (2, 1) if options.tiny else (options.steps, options.rounds)
    found = {"machine": outputs.machine(), "wanted_ratio": WANTED, "shapes": {}}
    for name in shapes:
        found["shapes"][name] = compare(SHAPES[name], steps=steps, rounds=rounds)
        print(name, found["shapes"][name], flush=True)
        outputs.write(options.out, "throughput", found)


if __name__ == "__main__":
    main()
