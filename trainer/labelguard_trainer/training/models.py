"""Models and tokenizers by the id of a hub or by path, with errors of one line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from labelguard.errors import LabelguardError
from labelguard_trainer.training.settings import Kind

__all__ = ["identity", "load_config", "load_model", "load_tokenizer", "opening", "save_merged"]

# What decides a model's numbers; other files of its directory are documentation.
_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.*", "*.bin")


def load_tokenizer(name: str, **options: Any) -> Any:
    """The tokenizer of a model; its end of text pads where it has no token for padding."""
    from transformers import AutoTokenizer

    with opening(name, "a tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # made of nothing, without an error
        raise LabelguardError(f"{name} cannot be loaded as a tokenizer: its vocabulary is missing")
    if tokenizer.eos_token is None:
        raise LabelguardError(f"the tokenizer of {name} has no end-of-text token (eos_token)")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(name: str, **options: Any) -> Any:
    """The configuration of a model: its architecture, its positions, the size of its vocabulary."""
    from transformers import AutoConfig

    with opening(name, "a model"):
        return AutoConfig.from_pretrained(name, **options)


def load_model(kind: Kind, name: str, **init: Any) -> Any:
    """A causal language model for `dpo`; for `reward` one with a score, newly made if it has none.

    In float32 unless `init` has a `dtype`, as TRL loads it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from trl.trainer.reward_trainer import suppress_seqcls_warning

    init.setdefault("dtype", torch.float32)
    with opening(name, "a model"):
        if kind == "dpo":
            return AutoModelForCausalLM.from_pretrained(name, **init)
        with suppress_seqcls_warning():  # a score that is new is what was asked for
            return AutoModelForSequenceClassification.from_pretrained(name, num_labels=1, **init)


def save_merged(model: Any, directory: str | Path) -> None:
    """A copy of a model with its adapter merged, as `from_pretrained` loads it without peft."""
    merged = deepcopy(model).merge_and_unload()
    merged.save_pretrained(directory)


def identity(name: str, revision: str | None = None) -> str:
    """SHA-256 over a local directory's files; of a hub's model its id and the commit it has here.

    Equal identities are equal weights, configuration and tokenizer.
    """
    directory = Path(name)
    if not directory.is_dir():
        commit = getattr(load_config(name, revision=revision), "_commit_hash", None)
        return f"{name}@{commit or revision or 'main'}"
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _FILES for path in directory.glob(pattern)}):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.name} {content}\n".encode())
    return f"sha256:{digest.hexdigest()}"


@contextmanager
def opening(name: str, what: str) -> Iterator[None]:
    """One line for what goes wrong while a model or its tokenizer is loaded."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise LabelguardError(f"{name} cannot be loaded as {what}: {reason}") from None
