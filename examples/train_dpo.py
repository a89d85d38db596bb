"""From raw labels to an aligned model on a CPU: simulated labelers, a private release, DPO.

    python examples/train_dpo.py        # about a minute

Everything is made here: nobody's labels, and a language model of two layers with words for tokens.
With your own, two lines remain: `lg.privatize` and `DPOTrainer`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import polars as pl
from datasets import Dataset
from labelguard_trainer import DPOConfig, DPOTrainer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

import labelguard as lg

LENGTH = 192


def train(directory: Path, labels: int, steps: int) -> float:
    """Release, train, and return how often the model agrees with other labelers' labels."""
    raw = lg.simulate(labelers=labels // 2, labels=labels, items=labels // 2)
    project = lg.init(directory / "project")
    release = lg.privatize(
        raw,
        project=project,
        mechanism="rr",
        label_values="1-0",
        epsilon=3,
        delta=1e-5,
        once=True,
        max_labels_per_labeler=2,
        block=1,
    )
    print(
        f"{release.card['counts']['rows']:,} labels released, each flipped with probability "
        f"{release.card['flip_probability']['median']:.2f}; loss: {release.card['train_with']}"
    )

    base = language_model(directory / "base", lg.load(release))
    args = DPOConfig(
        str(directory / "checkpoints"),
        max_length=LENGTH,
        max_steps=steps,
        learning_rate=1e-3,
        per_device_train_batch_size=16,
        activation_checkpointing=False,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
    )
    trainer = DPOTrainer(base, args, train_dataset=lg.load(release, "datasets"))
    trainer.train()
    return float((trainer.margins(others()) > 0).mean())


def language_model(directory: Path, texts: pl.DataFrame) -> str:
    """The path of a GPT-2 with random weights, and a tokenizer of the texts' words."""
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "<eos>", "<pad>"]
    rows = texts.select(pl.concat_str("prompt", "chosen", "rejected", separator=" "))
    words.train_from_iterator(
        rows.to_series().to_list(), trainers.WordLevelTrainer(special_tokens=special)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="<eos>", pad_token="<pad>"
    )
    set_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=2,
    )
    GPT2LMHeadModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def others() -> Dataset:
    """Pairs with the labels of other simulated labelers, as they said: public, being made up."""
    simulated = lg.simulate(labelers=100, labels=1_000, items=500, seed=1)
    labels = pl.DataFrame(simulated).filter(~pl.col("tie"))
    first = pl.col("label") == 1
    chosen = pl.when(first).then("response_a").otherwise("response_b")
    rejected = pl.when(first).then("response_b").otherwise("response_a")
    pairs = labels.select("prompt", chosen=chosen, rejected=rejected)
    # They say nothing of noise: a margin is all that is asked of them.
    return Dataset(pairs.to_arrow())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--labels", type=int, default=3_000)
    parser.add_argument("--steps", type=int, default=120)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        agreement = train(Path(directory), given.labels, given.steps)
    print(f"agreement with other labelers: {agreement:.2f} (0.50 is a coin)")


if __name__ == "__main__":
    main()
