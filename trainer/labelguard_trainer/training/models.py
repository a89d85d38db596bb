"""Models and tokenizers by the id of a hub or by path, with errors of one line.

Code that came with a model is run only where `trust_remote_code` says so. It is never left out:
transformers would then ask whoever sits at the terminal.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labelguard.errors import LabelguardError
from labelguard_trainer.training.settings import Kind

_REFUSALS = (
    *(ValueError, TypeError, OSError, RuntimeError),
    *(ImportError, AttributeError, KeyError, ArithmeticError),
)
# Tokens of prompt and response unless somebody says otherwise; TRL's default.
LONGEST = 1024


def load_tokenizer(name: str, **options: Any) -> Any:
    """Return the tokenizer of a model; its end of text pads where it has no token for padding."""
    from transformers import AutoTokenizer

    options.setdefault("trust_remote_code", False)
    with explain_failed_load(name, "a tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # made of nothing, without an error
        raise LabelguardError(f"{name} cannot be loaded as a tokenizer: its vocabulary is missing")
    if tokenizer.eos_token is None:
        raise LabelguardError(f"the tokenizer of {name} has no end-of-text token (eos_token)")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(name: str, **options: Any) -> Any:
    """Return the configuration of a model: its architecture, its positions, the size of its
    vocabulary.
    """
    from transformers import AutoConfig

    options.setdefault("trust_remote_code", False)
    with explain_failed_load(name, "a model"):
        return AutoConfig.from_pretrained(name, **options)


def choose_max_length(name: str, init: Mapping[str, Any]) -> int:
    """`LONGEST`, or all positions of a model that has fewer; `init` is as for `load_model`."""
    text = load_config(name, **init).get_text_config()
    return min(LONGEST, getattr(text, "max_position_embeddings", None) or LONGEST)


def load_model(kind: Kind, name: str, **init: Any) -> Any:
    """Return a causal language model for `dpo`; for `reward` one with a score, newly made if it has
    none.

    In float32 unless `init` has a `dtype`, as TRL loads it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from trl.trainer.reward_trainer import suppress_seqcls_warning

    init.setdefault("dtype", torch.float32)
    init.setdefault("trust_remote_code", False)
    with explain_failed_load(name, "a model"):
        if kind == "dpo":
            return AutoModelForCausalLM.from_pretrained(name, **init)
        with suppress_seqcls_warning():  # a score that is new is what was asked for
            return AutoModelForSequenceClassification.from_pretrained(name, num_labels=1, **init)


def identity(name: str, **options: Any) -> str:
    """SHA-256 over a local directory's files; of a hub's model its id and the commit it has here.

    Equal identities are equal weights, configuration, tokenizer and code. What is hidden (.git,
    caches) does not count. `options` are as for `load_config`.
    """
    directory = Path(name)
    if not directory.is_dir():
        load_config(name, **options)
        revision = options.get("revision")
        return f"{name}@{_find_commit(name, revision) or revision or 'main'}"
    digest = hashlib.sha256()
    for path in _files(directory):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{content} ".encode() + os.fsencode(path.relative_to(directory)) + b"\0")
    return f"sha256:{digest.hexdigest()}"


def _find_commit(name: str, revision: str | None) -> str | None:
    """Return the commit of which a hub's model is in the cache, which names a directory by it."""
    from transformers.utils import cached_file

    with explain_failed_load(name, "a model"):
        path = cached_file(name, "config.json", revision=revision)
    _, *inside = Path(path or "").as_posix().split("/snapshots/")
    return inside[-1].split("/")[0] if inside else None


def identify_and_pin(name: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a model's identity, and the settings `config` for just that model, with its usual
    length.
    """
    init = config.get("model_init_kwargs") or {}
    code = config.get("trust_remote_code", False)
    options = {"revision": init.get("revision"), "trust_remote_code": code}
    base = identity(name, **options)
    length = choose_max_length(name, {**init, **options})
    return base, {
        "max_length": length,
        **config,
        "model_init_kwargs": pin_revision(name, base, init),
    }


def pin_revision(name: str, identity: str, init: Mapping[str, Any]) -> dict[str, Any]:
    """`init` of `load_model` for the very commit of a hub's model that an identity tells."""
    if Path(name).is_dir():
        return dict(init)
    return {**init, "revision": identity.removeprefix(f"{name}@")}


def merge_adapters(kind: Kind, name: str, directory: Path, trainer: Any) -> None:
    """Put the whole model in place of adapters that a trainer saved in `directory`.

    The base is read anew, because sharded weights cannot be merged where they are.
    """
    from peft import PeftModel

    init = {"trust_remote_code": trainer.args.trust_remote_code}
    base = load_model(kind, name, **{**init, **(trainer.args.model_init_kwargs or {})})
    base.config.get_text_config().pad_token_id = trainer.processing_class.pad_token_id
    merged = PeftModel.from_pretrained(base, str(directory)).merge_and_unload()
    for path in directory.glob("adapter_*"):
        path.unlink()
    merged.save_pretrained(directory)


def check_unchanged(name: str, expected: str, **options: Any) -> None:
    """Raise `LabelguardError` if a model is not the one whose identity was taken."""
    if identity(name, **options) != expected:
        raise LabelguardError(
            f"{name} has changed since its identity was recorded; restore what it was and run the "
            "same command again"
        )


def _files(directory: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield all plain files below a directory, in order, through links but not in circles."""
    here = directory.resolve()
    if here in above:
        return
    for path in sorted(directory.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path, (*above, here))
        elif path.is_file():
            yield path


@contextmanager
def shorten_library_errors(what: str) -> Iterator[None]:
    """One line for what the libraries refuse of a model and its settings."""
    try:
        yield
    except _REFUSALS as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise LabelguardError(f"{what}: {reason}") from error


@contextmanager
def explain_failed_load(name: str, what: str) -> Iterator[None]:
    """One line for what goes wrong while a model or its tokenizer is loaded."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise LabelguardError(f"{name} cannot be loaded as {what}: {reason}") from None


def check_weights_complete(kind: Kind, name: str, init: Mapping[str, Any]) -> None:
    """Raise `LabelguardError` if a model's files lack weights that transformers would make up.

    A reward model's head, which is outside its backbone, may be new. `init` is as for `load_model`;
    the weights are named and not kept in memory.
    """
    given = {**init, "output_loading_info": True, "device_map": "meta"}
    given.pop("quantization_config", None)  # it wants a device
    model, report = load_model(kind, name, **given)
    backbone = f"{model.base_model_prefix}."
    missing = sorted(
        key for key in report["missing_keys"] if kind == "dpo" or key.startswith(backbone)
    )
    if missing:
        raise LabelguardError(
            f"{name} is not whole: {len(missing):,} of its weights are missing, {missing[0]} among "
            "them; copy the model again"
        )
