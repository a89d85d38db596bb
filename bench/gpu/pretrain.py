"""A GPT-2 of 124M parameters from scratch on the dialogues, with a tokenizer trained on them.

    bench/gpu.sh pretrain

Writes the directory `base` under $OUT; prints the loss and the speed, never a text.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

from gpu.dialogues import LENGTH, load_corpus


@dataclass(frozen=True)
class Size:
    """A GPT-2, and how long it is trained: batches of `batch` rows of `LENGTH` tokens."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50_257
    tokens: int = 32_000
    epochs: int = 8
    batch: int = 32


TINY = Size(layers=1, width=16, heads=2, vocabulary=400, tokens=400, epochs=1, batch=8)


def train_tokenizer(texts: list[str], tokens: int) -> PreTrainedTokenizerFast:
    """Return byte-level BPE of at most so many tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens,
        special_tokens=["<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", model_max_length=LENGTH
    )


def pack(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> NDArray[np.int64]:
    """Return all texts, one after another, in rows of `LENGTH` tokens."""
    ids = tokenizer([text + tokenizer.eos_token for text in texts])["input_ids"]
    flat = np.concatenate([np.array(row) for row in ids])
    return flat[: len(flat) // LENGTH * LENGTH].reshape(-1, LENGTH)


def train(model: GPT2LMHeadModel, rows: NDArray[np.int64], size: Size) -> float:
    """Train a model; return the mean loss of the last tenth of the steps."""
    device = model.device.type
    draw = np.random.default_rng(0)
    order = np.concatenate([draw.permutation(len(rows)) for _ in range(size.epochs)])
    steps = -(-len(order) // size.batch)
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-4, total_steps=steps)
    losses = []
    for step in range(steps):
        chosen = rows[order[step * size.batch : (step + 1) * size.batch]]
        batch = torch.from_numpy(chosen).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return float(torch.stack(losses[-max(1, steps // 10) :]).mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the tokenizer and the model, and save both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    out = Path(os.environ.get("OUT", "gpu-results"))
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    parser.add_argument("--out", type=Path, default=out, help="where `base` is made; default $OUT")
    options = parser.parse_args(arguments)
    size = TINY if options.tiny else Size()
    corpus = load_corpus(tiny=options.tiny)
    texts = corpus.training.texts() + corpus.others.texts()
    tokenizer = train_tokenizer(texts, size.tokens)
    rows = pack(texts, tokenizer)
    set_seed(0)
    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=LENGTH,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = GPT2LMHeadModel(config).to("cuda" if torch.cuda.is_available() else "cpu")
    start = time.perf_counter()
    loss = train(model, rows, size)
    seconds = time.perf_counter() - start
    tokenizer.save_pretrained(options.out / "base")
    model.save_pretrained(options.out / "base")
    speed = round(rows.size * size.epochs / seconds)
    print(f"{model.num_parameters():,} parameters, {rows.size:,} tokens {size.epochs} times")
    print(f"loss {loss:.2f}, {seconds:.0f} s, {speed:,} tokens a second")


if __name__ == "__main__":
    main()
