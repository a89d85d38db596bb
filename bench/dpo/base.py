"""The small language model that every run starts from, and what is computed of it once.

All that is made here lies in a directory and is made again only where it is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from labelguard_trainer import DPOConfig, DPOTrainer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dpo import grammar
from dpo.grammar import Pairs
from labelguard.storage.files import write_atomically

POSITIONS = 160
PROBES_SEED, PRETRAINING_SEED = 1_000, 2_000
_SPECIAL = ["<pad>", "<eos>", "<unk>"]


@dataclass(frozen=True)
class Size:
    """How much is computed; `epochs` are those of DPO, `steps` those of pretraining."""

    pairs: int = 2_000
    probes: int = 1_000
    seeds: int = 3
    width: int = 64
    layers: int = 2
    steps: int = 600
    epochs: int = 2
    batch: int = 32


TINY = Size(pairs=48, probes=16, seeds=2, width=16, layers=1, steps=3, epochs=1, batch=16)


def training_pairs(size: Size, seed: int) -> Pairs:
    """The pairs that labelers see."""
    return grammar.pairs(size.pairs, seed)


def probe_pairs(size: Size) -> Pairs:
    """Fresh pairs, the same for all runs; the sign of their advantage is public."""
    return grammar.pairs(size.probes, PROBES_SEED)


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each word of the language."""
    words = [*_SPECIAL, *grammar.vocabulary()]
    numbered = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocab=numbered, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def pretrained(size: Size, directory: Path) -> Path:
    """A GPT-2 that knows the language, so that ratios of its probabilities mean something."""
    path = directory / "base"
    if path.exists():
        return path
    words = tokenizer()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(_config(size, words))
    texts = grammar.pairs(max(size.batch, 5 * size.steps), PRETRAINING_SEED).texts()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=size.steps)
    draw = np.random.default_rng(PRETRAINING_SEED)
    for _ in range(size.steps):
        chosen = [texts[row] + "<eos>" for row in draw.integers(len(texts), size=size.batch)]
        batch = words(chosen, return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    begun = directory / "base.partial"
    words.save_pretrained(begun)
    model.save_pretrained(begun)
    return begun.rename(path)


def dpo_config(size: Size, output: Path, **more: Any) -> DPOConfig:
    """The settings that all runs share."""
    return DPOConfig(
        str(output),
        beta=0.1,
        learning_rate=5e-4,
        num_train_epochs=size.epochs,
        per_device_train_batch_size=size.batch,
        per_device_eval_batch_size=size.batch,
        warmup_steps=0.1,
        max_length=POSITIONS,
        activation_checkpointing=False,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )


def scored(name: str, pairs: Pairs, base: Path, size: Size, directory: Path) -> pa.Table:
    """Pairs as tokens, with the reference's log-probabilities of both sides.

    Columns prompt_ids, first_ids, second_ids, ref_first, ref_second.
    """
    path = directory / f"{name}.parquet"
    if not path.exists():
        sink = pa.BufferOutputStream()
        pq.write_table(_scored(pairs, base, size, directory), sink)
        write_atomically(path, sink.getvalue().to_pybytes())
    return pq.read_table(path)


def _scored(pairs: Pairs, base: Path, size: Size, directory: Path) -> pa.Table:
    from datasets import Dataset

    texts = {"prompt": pairs.prompt, "chosen": pairs.first, "rejected": pairs.second}
    config = dpo_config(size, directory / "unused", non_private=True, precompute_ref_log_probs=True)
    trainer = DPOTrainer(str(base), config, train_dataset=Dataset.from_dict(texts))
    reference = trainer.log_probs(trainer.train_dataset)
    ids = trainer.train_dataset.with_format("arrow")[:]
    return pa.table(
        {
            "prompt_ids": ids["prompt_ids"],
            "first_ids": ids["chosen_ids"],
            "second_ids": ids["rejected_ids"],
            "ref_first": reference[:, 0],
            "ref_second": reference[:, 1],
        }
    )


def _config(size: Size, words: PreTrainedTokenizerFast) -> GPT2Config:
    return GPT2Config(
        vocab_size=len(words),
        n_positions=POSITIONS,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=2,
        bos_token_id=words.eos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
