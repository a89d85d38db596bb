"""Time training: our DPO against TRL's, PROPS against one stage, noisy steps against plain SGD.

    OMP_NUM_THREADS=1 python bench/training_time.py dpo --shape small       # on a CPU
    OMP_NUM_THREADS=1 python bench/training_time.py props gradients
    python bench/training_time.py dpo --shape gpt2                          # on a GPU
    python bench/training_time.py dpo props gradients --tiny                # in a minute

Weights and letters are random, which costs no time. Seconds are the clock's on a GPU; on a CPU they
are the process's own, which other programs do not change. Medians over steps or rounds.

- `dpo`: both trainers take turns on the same pairs, with the reference computed beforehand. The
  first steps of each turn are not counted.
- `props`: 500 pairs in batches of 4, as in the paper's comparison (props, Table 5). One stage is
  training on all labels of randomized response, with the same trainer and as many steps.
- `gradients`: LoRA's matrices of a reward model take a step on 32 records, of labelers with 1, 4
  or 16 of them. *SGD* is Adam on the mean loss. `uls` clips, sums, adds noise and steps. `aup`
  compares labelers' gradients, leaves some out, and goes on as `uls`. Memory is the process's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _measure import measure, report

WARM_UP = 2
FLIP = 0.3
HELD = (1, 4, 16)
"""Records of a labeler."""


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
    "narrow": Shape(4, 128, 4, batch=8, length=128, vocabulary=258),
    "small": Shape(4, 256, 4, batch=8, length=128, vocabulary=8_192),
    "gpt2": Shape(12, 768, 12, batch=16),
    "gpt2-medium": Shape(24, 1024, 16, batch=8),
    "gpt2-large": Shape(36, 1280, 20, batch=8),
}


def save_model(directory: str, shape: Shape) -> None:
    """Save a GPT-2 of random weights, and a tokenizer to which every byte is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>", "<pad>"]
    backend = Tokenizer(models.BPE(vocab={name: n for n, name in enumerate(names)}, merges=[]))
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


def letters(pairs: int, tokens: int) -> pa.Table:
    """Return pairs of random letters; a prompt is a quarter of the tokens, one ends a text."""
    draw = np.random.default_rng(0)

    def texts(length: int) -> list[str]:
        codes = draw.integers(97, 123, (pairs, length)).astype(np.uint8)
        return [row.tobytes().decode() for row in codes]

    prompt = tokens // 4
    columns = {"prompt": prompt, "first": tokens - prompt - 1, "second": tokens - prompt - 1}
    return pa.table({name: texts(length) for name, length in columns.items()})


def now() -> float:
    """Return the seconds that count: the clock's once the GPU is done, or this process's own."""
    import torch

    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


# --- DPO -----------------------------------------------------------------------------------------


def train_dpo(name: str, directory: str, shape: Shape, steps: int) -> list[float]:
    """Return seconds of each counted step of a trainer."""
    import torch
    import trl
    from datasets import Dataset
    from labelguard_trainer import DPOConfig, DPOTrainer
    from transformers import PrinterCallback, TrainerCallback

    class Steps(TrainerCallback):  # type: ignore[misc]
        ends: list[float] = []  # noqa: RUF012 (there is one)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(now())

    ours = name == "ours"
    config, trainer = (DPOConfig, DPOTrainer) if ours else (trl.DPOConfig, trl.DPOTrainer)
    on_gpu = torch.cuda.is_available()
    arguments = config(
        f"{directory}/{name}",
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
        **({"non_private": True} if ours else {}),
    )
    table = letters((steps + WARM_UP) * shape.batch, shape.length)
    rows = Dataset(table.rename_columns({"first": "chosen", "second": "rejected"}))
    begun = trainer(f"{directory}/base", args=arguments, train_dataset=rows, callbacks=[Steps()])
    begun.remove_callback(PrinterCallback)
    begun.train()
    return [float(second) for second in np.diff(Steps.ends)[WARM_UP - 1 :]]


def time_dpo(directory: str, shape: Shape, tiny: bool) -> list[list[Any]]:
    """Return seconds of a step of both trainers, and their ratio."""
    seconds: dict[str, list[float]] = {"ours": [], "TRL's": []}
    for _ in range(1 if tiny else 3):
        for name, found in seconds.items():
            found += measure(train_dpo, name, directory, shape, 2 if tiny else 10)["result"]
    ours, other = (statistics.median(found) for found in seconds.values())
    tokens = 2 * shape.batch * shape.length
    return [
        [f"DPO, {name}", f"{step:.4f}", f"{tokens / step:,.0f} tokens/s", f"{step / other:.2f}"]
        for name, step in (("ours", ours), ("TRL's", other))
    ]


# --- PROPS ---------------------------------------------------------------------------------------


def run_props(directory: str, pairs: int, tokens: int, stages: int, epochs: int) -> float:
    """Return the seconds of all stages."""
    from labelguard_trainer.training import learners

    from labelguard.learning.learners import LearnerOptions
    from labelguard.mechanisms.props_stages import ReleasedLabels, run_stages
    from labelguard.text import no_progress

    config = Path(directory) / f"{epochs}.yaml"
    config.write_text(f"num_train_epochs: {epochs}\n")
    rows = np.arange(pairs)
    released = np.random.default_rng(1).integers(0, 2, pairs).astype(np.uint8)
    labels = ReleasedLabels(rows, rows, rows % stages, rows % 5, released, np.full(pairs, FLIP))
    start = now()
    options = LearnerOptions(f"{directory}/base", None, str(config))
    prepared = learners.dpo(letters(pairs, tokens), options)
    with tempfile.TemporaryDirectory(dir=directory) as work:
        learner = prepared.open(Path(work), no_progress)
        for _ in run_stages(prepared.inputs, labels, learner, stages=stages):
            pass
        return now() - start


def time_props(directory: str, shape: Shape, tiny: bool) -> list[list[Any]]:
    """Return seconds by epochs and stages, and ratios to one stage."""
    rows, pairs = [], 8 if tiny else 500
    for epochs in (1,) if tiny else (1, 3):
        alone = 0.0
        for stages in (1, 2, 3):
            asked = (directory, pairs, min(shape.length, 128), stages, epochs)
            runs = [measure(run_props, *asked)["result"] for _ in range(1 if tiny else 3)]
            seconds = statistics.median(runs)
            alone = alone or seconds
            what = f"PROPS, {stages} stages, {epochs} epochs"
            rows.append([what, f"{seconds:.1f}", "", f"{seconds / alone:.2f}"])
    return rows


# --- noisy steps ---------------------------------------------------------------------------------


def open_problem(directory: str, held: int, records: int, tokens: int) -> Any:
    """Return a reward model with LoRA, and records of labelers: a pair each."""
    import torch
    from labelguard_trainer.gradient.language_runs import PreparedLanguage
    from labelguard_trainer.gradient.records import Records

    from labelguard.learning.learners import LearnerOptions

    config = Path(directory) / "gradients.yaml"
    on_cpu = str(not torch.cuda.is_available()).lower()
    config.write_text(f"per_device_train_batch_size: 16\nuse_cpu: {on_cpu}\n")
    options = LearnerOptions(f"{directory}/base", "r=8,alpha=16", str(config))
    prepared = PreparedLanguage.of("reward", letters(records, tokens), options)
    rows = np.arange(records)
    return prepared.open(Records(rows, rows // held, -(-records // held), held, "mean"))


def make_step(way: str, problem: Any, labels: Any) -> Callable[[], None]:
    """Return a step of one way over all labelers."""
    import torch
    from labelguard_trainer.gradient import aup

    from labelguard.keys.keyring import random_bytes

    units = np.arange(problem._records.population)
    optimizer = torch.optim.AdamW(problem._parameters, 1e-4, weight_decay=0.0)

    def descend() -> None:
        leave_mean_gradient(problem, labels)
        optimizer.step()
        optimizer.zero_grad()

    def clip() -> None:
        total = problem.clipped_sum(units, labels, 1.0)
        problem.step(problem.add_noise(total, 1.0, random_bytes(32)) / len(units))

    def select() -> None:
        gradients = problem.gradients(units, labels)
        aup.concentration(gradients, 2.0)
        kept = aup.select_inliers(gradients, 2.0, np.full(len(units), 0.5))
        total = gradients[kept].sum(axis=0) / max(1, int(kept.sum()))
        problem.step(problem.add_noise(total, 1.0, random_bytes(32)))

    return {"SGD": descend, "uls": clip, "aup": select}[way]


def leave_mean_gradient(problem: Any, labels: Any) -> None:
    """Leave the gradient of the mean loss with the parameters, as autograd makes it."""
    import torch
    from labelguard_trainer.losses import soft

    for at in range(0, len(labels), 16):
        rows = np.arange(at, min(at + 16, len(labels)))
        target = problem._tensor(labels[rows])
        margins = problem._first_side_margins(problem._records.pairs[rows])
        loss = soft(margins, target, torch.zeros_like(target)).sum() / len(labels)
        loss.backward()


def run_steps(directory: str, way: str, held: int, records: int, tokens: int) -> float:
    """Return the median seconds of five steps, after one that is not counted."""
    labels = np.random.default_rng(0).choice([0.0, 0.5, 1.0], records)
    step = make_step(way, open_problem(directory, held, records, tokens), labels)
    seconds = []
    for counted in range(6):
        start = now()
        step()
        seconds += [now() - start] if counted else []
    return statistics.median(seconds)


def time_gradients(directory: str, shape: Shape, tiny: bool) -> list[list[Any]]:
    """Return seconds and memory of a step of each way, and ratios to plain SGD."""
    rows = []
    for held in HELD[:1] if tiny else HELD:
        plain = 0.0
        for way in ("SGD", "uls", "aup"):
            asked = (directory, way, held, 4 if tiny else 32, min(shape.length, 64))
            found = measure(run_steps, *asked)
            plain = plain or found["result"]
            ratio, memory = found["result"] / plain, f"{found['peak_gb']} GB"
            what = f"LoRA, {way}, {held} records of each"
            rows.append([what, f"{found['result']:.3f}", memory, f"{ratio:.2f}"])
    return rows


PARTS = {"dpo": time_dpo, "props": time_props, "gradients": time_gradients}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and print their tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="+", choices=list(PARTS))
    parser.add_argument("--shape", choices=list(SHAPES), default="narrow")
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    options = parser.parse_args(arguments)
    name = "tiny" if options.tiny else options.shape
    shape = SHAPES[name]
    for part in options.part:
        with tempfile.TemporaryDirectory() as directory:
            measure(save_model, f"{directory}/base", shape)
            rows = PARTS[part](directory, shape, options.tiny)
        report(f"{part}, {name}", ["what", "seconds", "", "ratio"], rows)


if __name__ == "__main__":
    main()
