"""The small language model that every run starts from, and what is computed of it once.

All that is made here lies in a directory and is made again only where it is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dpo import grammar
from dpo.scoring import scored
from dpo.training import Problem

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
    steps: int = 800
    epochs: int = 2
    batch: int = 32
    sentences: tuple[int, int] = grammar.SENTENCES


TINY = Size(pairs=48, probes=16, seeds=1, width=16, layers=1, steps=3, epochs=1, batch=16)


def problem(size: Size, seed: int, directory: Path) -> Problem:
    """Made, or read where it was made before."""
    model, shared = pretrained(size, directory), settings(size)
    pairs, probes = (
        grammar.pairs(count, which, size.sentences)
        for count, which in ((size.pairs, seed), (size.probes, PROBES_SEED))
    )
    tokens = scored(f"pairs-s{seed}", pairs, model, shared, directory)
    probe_tokens = scored("probes", probes, model, shared, directory)
    return Problem(seed, directory, model, shared, pairs, tokens, probes, probe_tokens)


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
    texts = grammar.pairs(5 * size.steps, PRETRAINING_SEED, size.sentences).texts()
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


def settings(size: Size) -> dict[str, Any]:
    """The fields of `DPOConfig` that all runs share."""
    return {
        "beta": 0.1,
        "learning_rate": 5e-4,
        "num_train_epochs": size.epochs,
        "per_device_train_batch_size": size.batch,
        "per_device_eval_batch_size": size.batch,
        "warmup_steps": 0.1,
        "max_length": POSITIONS,
        "activation_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
    }


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
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
