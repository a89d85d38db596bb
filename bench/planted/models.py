"""Small language models, releases of simulated labelers, and what models learn from them.

Releases are made by `labelguard.privatize` and learned from by `labelguard_trainer`'s trainers, as
anybody would. What is made lies in a directory, and is made again only where it is missing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import torch
import yaml
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from labelguard_trainer import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from peft import LoraConfig
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    set_seed,
)
from transformers.utils import logging

import labelguard as lg
from planted import grammar
from planted.grammar import Floats, Ids, Labels, Pairs

DELTA = 1e-5
POSITIONS = 160
FLIP = "flip_probability"
_PRETRAINING_SEED = 2_000
_SPECIAL = ["<pad>", "<eos>", "<unk>"]
_QUIET = {
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "activation_checkpointing": False,
}

Kind: TypeAlias = Literal["dpo", "reward"]


@dataclass(frozen=True)
class Size:
    """A GPT-2 of the language, its pretraining, and the sentences of a response."""

    width: int
    layers: int
    sentences: tuple[int, int]
    steps: int = 800
    batch: int = 32


def be_quiet() -> None:
    """Use one core, and show no progress bars."""
    torch.set_num_threads(1)
    disable_progress_bar()
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def pretrain(size: Size, directory: Path) -> Path:
    """Return a model that knows the language: its probabilities mean something."""
    path = directory / f"base-{size.width}-{size.layers}-{size.sentences[0]}-{size.steps}"
    if path.exists():
        return path
    words = {word: number for number, word in enumerate([*_SPECIAL, *grammar.VOCABULARY])}
    backend = Tokenizer(WordLevel(vocab=words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=POSITIONS,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=2,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    texts = grammar.draw_pairs(5 * size.steps, _PRETRAINING_SEED, size.sentences).texts()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=size.steps)
    draw = np.random.default_rng(_PRETRAINING_SEED)
    for _ in range(size.steps):
        chosen = [texts[row] + "<eos>" for row in draw.integers(len(texts), size=size.batch)]
        batch = tokenizer(chosen, return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    begun = path.with_suffix(".partial")
    tokenizer.save_pretrained(begun)
    model.save_pretrained(begun)
    return begun.rename(path)


@dataclass(frozen=True, eq=False)
class Answers:
    """What labelers said: the pair, the labeler and the label (1: the first side) of n rows."""

    pairs: Pairs
    pair: Ids
    labeler: Ids
    label: Labels

    def select(self, rows: Any) -> Answers:
        """Return some of the rows."""
        return Answers(self.pairs, self.pair[rows], self.labeler[rows], self.label[rows])

    def table(self) -> pa.Table:
        """Return an input of `privatize`."""
        columns = {"prompt": "prompt", "response_a": "first", "response_b": "second"}
        texts = pa.table({name: getattr(self.pairs, own) for name, own in columns.items()})
        table = texts.take(pa.array(self.pair)).append_column("label", pa.array(self.label))
        numbers = {"item_id": self.pair, "labeler_id": self.labeler}
        for name, values in numbers.items():
            table = table.append_column(name, pa.array([f"{value:06d}" for value in values]))
        return table

    def raw(self) -> Dataset:
        """Return the labels as they are, as a trainer takes them."""
        chosen = self.label == 1
        return as_rows(self.pairs, self.pair, chosen)


def ask(pairs: Pairs, labelers: int, each: int, seed: int) -> Answers:
    """Return `each` labels of so many labelers; every pair is labelled about equally often."""
    draw, rows = np.random.default_rng((seed, 1)), labelers * each
    rounds = [draw.permutation(len(pairs)) for _ in range(-(-rows // len(pairs)))]
    pair = np.concatenate(rounds)[:rows]
    return Answers(pairs, pair, np.arange(rows) // each, pairs.label(pair, draw))


def as_rows(pairs: Pairs, pair: Ids, first: Any) -> Dataset:
    """Return some pairs, of which the first side or else the second is `chosen`."""
    sides = np.array([pairs.second, pairs.first], object)
    wanted = np.asarray(first, int)
    return Dataset.from_dict(
        {
            "prompt": [pairs.prompt[row] for row in pair],
            "chosen": sides[wanted, pair].tolist(),
            "rejected": sides[1 - wanted, pair].tolist(),
        }
    )


def release(
    mechanism: str, answers: Answers, epsilon: float, path: Path, **options: Any
) -> Dataset:
    """Return the rows of a release at (ε, 1e-5), in the order of their pairs."""
    if not path.exists():
        with tempfile.TemporaryDirectory() as home:
            lg.privatize(
                answers.table(),
                mechanism=mechanism,
                project=lg.init(Path(home), max_epsilon=max(10, epsilon)),
                epsilon=epsilon,
                delta=DELTA,
                once=True,
                accept_little_use=True,
                label_values="1-0",
                output=path,
                **options,
            )
    return lg.load(path, "datasets").sort("item_id")


def train(
    kind: Kind,
    base: Path,
    rows: Dataset,
    probes: Pairs,
    settings: Mapping[str, Any],
    *,
    loss: str = "auto",
    lora: str | None = None,
) -> Floats:
    """Train a model on rows; return the margins of the probes' first sides, shape (probes,)."""
    adapter = {} if lora is None else {"peft_config": _read_lora(kind, lora)}
    trainer = _open(kind, base, rows, {**settings, "preference_loss": loss}, **adapter)
    fresh = trainer.prepare_for_scoring(_all_rows(probes))
    trainer.train()
    return np.asarray(trainer.margins(fresh))


def score(
    kind: Kind, model: Path, base: Path, probes: Pairs, settings: Mapping[str, Any]
) -> Floats:
    """Return the margins of the probes' first sides by a model that a release left."""
    reference = {"ref_model": AutoModelForCausalLM.from_pretrained(base)} if kind == "dpo" else {}
    rows = _all_rows(probes)
    return np.asarray(_open(kind, model, rows, settings, **reference).margins(rows))


def write_settings(settings: Mapping[str, Any], path: Path) -> str:
    """Write a `--train-config`; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(settings)))
    return str(path)


def _all_rows(pairs: Pairs) -> Dataset:
    return as_rows(pairs, np.arange(len(pairs)), np.ones(len(pairs), int))


def _open(
    kind: Kind, model: Path, rows: Dataset, settings: Mapping[str, Any], **more: Any
) -> DPOTrainer | RewardTrainer:
    config, trainer = {
        "dpo": (DPOConfig, DPOTrainer),
        "reward": (RewardConfig, RewardTrainer),
    }[kind]
    set_seed(settings["seed"])  # the head of a reward model is new
    with tempfile.TemporaryDirectory() as scratch:
        raw = FLIP not in rows.column_names
        asked = config(scratch, **_QUIET, **settings, non_private=raw)
        opened = trainer(str(model), asked, train_dataset=rows, **more)
    opened.remove_callback(PrinterCallback)
    return opened


def _read_lora(kind: Kind, text: str) -> LoraConfig:
    rank, alpha = (int(part.partition("=")[2]) for part in text.split(","))
    task = {"dpo": "CAUSAL_LM", "reward": "SEQ_CLS"}[kind]
    return LoraConfig(task_type=task, r=rank, lora_alpha=alpha)
