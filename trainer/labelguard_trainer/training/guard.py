"""Checks before a step is taken, so that a long run does not end in a stack trace.

Checks need no GPU and come before weights are loaded, where they can.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from datasets import Dataset
from safetensors import SafetensorError
from transformers import TrainingArguments
from transformers.utils import is_torch_bf16_gpu_available
from trl.data_utils import is_conversational
from trl.trainer.utils import get_config_model_id

from labelguard.errors import LabelguardError
from labelguard.processes import count_processes
from labelguard_trainer.training.models import load_config, load_tokenizer
from labelguard_trainer.training.rows import TARGET, WEIGHT, NoisyRows, read_noise_columns

_log = logging.getLogger(__name__)
Config = TypeVar("Config", bound=TrainingArguments)

_CLASSIFIER = "ForSequenceClassification"

# Torch has no classes of its own for these.
_NO_MEMORY = ("out of memory", "can't allocate memory")
_TORCH_CANNOT_WRITE = ("PytorchStreamWriter", "inline_container", "iostream error")


def correct_trl_defaults(config: Any) -> None:
    """Correct defaults of TRL: bf16 on a CPU, and a deprecated name for checkpointing."""
    if config.bf16 is None and not config.fp16:
        config.bf16 = bool(is_torch_bf16_gpu_available()) and not config.use_cpu
    if config.activation_checkpointing is None:
        config.activation_checkpointing = config.gradient_checkpointing
    config.dataloader_pin_memory &= torch.accelerator.is_available()
    if count_processes() > 1 and not torch.accelerator.is_available():
        config.use_cpu = True  # else each process would take itself for the only one


class CorrectedDefaults:
    """Comes before a configuration of TRL: corrects its defaults by `correct_trl_defaults`."""

    def __post_init__(self) -> None:
        correct_trl_defaults(self)
        super().__post_init__()  # type: ignore[misc]  # of TRL's configuration, the next base


def _find_path_or_id(model: Any) -> str:
    """Return a model's path or its id; "" of one in memory."""
    return model if isinstance(model, str) else get_config_model_id(model.config) or ""


def copy_or_default_config(args: Any, kind: type[Config], model: Any) -> Config:
    """Return a copy of `args`, which trainers change, or the default for a model.

    TRL's configuration is taken as ours, with the defaults of what it does not say of noise.
    """
    if args is None:
        name = _find_path_or_id(model)
        default: Config = kind(f"{name.rstrip('/').split('/')[-1] or 'model'}-{kind.__name__[:-6]}")
        return default
    if isinstance(args, kind):
        return copy(args)
    if type(args) is not kind.__bases__[-1]:  # TRL's; what we add to it comes first
        raise LabelguardError(
            f"args must be a {kind.__name__} of labelguard_trainer or of trl, found "
            f"{type(args).__module__}.{type(args).__name__}"
        )
    taken: Any = copy(args)
    taken.__class__ = kind  # a copy by fields would go through TRL's defaults a second time
    taken.__dict__ |= {f.name: f.default for f in fields(kind) if f.name not in taken.__dict__}
    own: Config = taken
    return own


# Of TRL's settings of DPO: the value that does not contradict the loss, or is not broken.
_ONLY: Mapping[str, tuple[Any, str]] = {
    "label_smoothing": (0, "each row's γ is its own; set preference_loss='robust'"),
    "loss_weights": (None, "there is one loss"),
    "use_weighting": (False, "rows are weighted by their noise"),
    "ld_alpha": (None, "the margin is that of whole completions"),
    "f_divergence_type": ("reverse_kl", "losses of noisy rows are stated for DPO's own margin"),
    "truncation_mode": ("keep_start", "TRL 1.16 is about to remove it"),
    "padding_free": (False, "TRL 1.16 has switched it off"),
    "pad_token": (None, "set it on the tokenizer that you pass"),
}


def check_dpo_settings(args: Any, options: Mapping[str, Any]) -> None:
    """Raise `LabelguardError` for settings that contradict the loss, or are broken in TRL."""
    sharded = is_fsdp2(args) and options.get("ref_model") is None
    is_ipo = args.loss_type == ["ipo"]
    refuse_if_any_holds(
        {
            f"loss_type {args.loss_type}": (
                args.loss_type != ["sigmoid"] and not is_ipo,
                "preference_loss says which loss is taken of noisy rows; ['ipo'] is IPO's",
            ),
            "preference_loss forward with loss_type ipo": (
                is_ipo and args.preference_loss == "forward",
                "IPO has no likelihood; robust, its unbiased loss, is the default",
            ),
            **{
                f"{name} {getattr(args, name)}": (getattr(args, name) != only, reason)
                for name, (only, reason) in _ONLY.items()
            },
            "compute_metrics": (
                options.get("compute_metrics") is not None,
                "it would need logits, which are not computed; use margins()",
            ),
            "precompute_ref_log_probs under FSDP2 without ref_model": (
                args.precompute_ref_log_probs and sharded,
                "TRL 1.16 crashes; pass a ref_model",
            ),
        }
    )


def refuse_if_any_holds(refused: Mapping[str, tuple[bool, str]]) -> None:
    """Raise `LabelguardError` for the first name whose condition holds, with its reason."""
    for name, (holds, reason) in refused.items():
        if holds:
            raise LabelguardError(f"{name} cannot be used here: {reason}")


def check_processes_joined(args: Any) -> None:
    """Raise `LabelguardError` for processes that would train apart, or would share no shards.

    Each of several that do not know of each other trains on its own, on other batches than asked.
    """
    count = count_processes()
    if args.world_size != count:
        raise LabelguardError(
            f"{count} processes were launched, and each would train by itself "
            f"({args.world_size} of {count} found each other): launch as many as there are GPUs, "
            "or set use_cpu: true"
        )
    if _is_fsdp_launched() and args.distributed_state.distributed_type == "MULTI_CPU":
        raise LabelguardError(
            "FSDP shards over GPUs, and these processes are on a CPU: launch them by a "
            "configuration without fsdp_config"
        )


def _is_fsdp_launched() -> bool:
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def is_fsdp2(args: Any) -> bool:
    """Return True if a run is sharded by FSDP of version 2: by its arguments, or by accelerate
    launch.
    """
    if args.fsdp:
        return bool(args.fsdp_plugin_args["fsdp_version"] == 2)
    return _is_fsdp_launched() and os.environ.get("FSDP_VERSION", "1") == "2"


def collect_datasets(train: Any, evaluation: Any) -> list[Any]:
    """Return the data sets that a trainer is given. `LabelguardError` for none, and for streams."""
    if train is None:
        raise LabelguardError("train_dataset is missing: labelguard.load(release, 'datasets')")
    several = list(evaluation.values()) if isinstance(evaluation, dict) else [evaluation]
    given = [train, *(one for one in several if one is not None)]
    for dataset in given:
        if not isinstance(dataset, Dataset):
            raise LabelguardError(
                f"a data set must be a datasets.Dataset, found {type(dataset).__name__}: weights "
                "over all rows, and their order, need its length"
            )
    return given


def check_rows(dataset: Any, args: Any) -> None:
    """Raise `LabelguardError` for no rows, pictures, and rows that the loss cannot be given."""
    columns = set(dataset.column_names)
    if not len(dataset):
        raise LabelguardError("a data set has no rows")
    if columns & {"image", "images"}:
        raise LabelguardError("releases hold texts; a data set with pictures is not supported")
    if "margin" in columns:
        raise LabelguardError("a margin column is not taken: it says something of raw labels")
    if not {TARGET, WEIGHT} <= columns:
        NoisyRows.from_columns(
            read_noise_columns(dataset), args.preference_loss, non_private=args.non_private
        )


def load_tokenizer_of_model(model: Any, args: Any) -> Any:
    """Return the tokenizer saved with a model. `LabelguardError` if it has no path to find it
    at.
    """
    name = _find_path_or_id(model)
    if not name:
        raise LabelguardError("a model in memory has no tokenizer: pass processing_class")
    revision = (args.model_init_kwargs or {}).get("revision")
    return load_tokenizer(name, revision=revision, trust_remote_code=args.trust_remote_code)


def load_checked_config(model: Any, tokenizer: Any, args: Any) -> Any:
    """Return the model's configuration.

    Raises `LabelguardError` if model, tokenizer and `max_length` do not fit together.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if isinstance(model, str):
        revision = (args.model_init_kwargs or {}).get("revision")
        config = load_config(model, revision=revision, trust_remote_code=args.trust_remote_code)
        vocabulary = config.get_text_config().vocab_size
    else:
        config = model.config
        vocabulary = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > vocabulary:
        raise LabelguardError(
            f"the tokenizer has {len(tokenizer):,} tokens and the model {vocabulary:,}: it is "
            "another model's, or the embedding must be resized first"
        )
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and (args.max_length is None or args.max_length > positions):
        raise LabelguardError(
            f"max_length is {args.max_length}, and the model has {positions:,} positions: set "
            f"max_length={positions} or less"
        )
    return config


def check_language_model(config: Any) -> None:
    """Raise `LabelguardError` for a model that has no probabilities of a next token."""
    name = _architecture(config)
    if config.is_encoder_decoder or name.endswith(_CLASSIFIER):
        raise LabelguardError(f"{name} is not a causal language model, which DPO trains")


def check_reward_model(config: Any) -> None:
    """Raise `LabelguardError` for a classifier with more than one output."""
    name = _architecture(config)
    if name.endswith(_CLASSIFIER) and config.num_labels != 1:
        raise LabelguardError(f"{name} has {config.num_labels} outputs; a reward model has one")


def _architecture(config: Any) -> str:
    return str((config.architectures or ["the model"])[0])


def check_chat_template(dataset: Any, tokenizer: Any) -> None:
    """Raise `LabelguardError` for conversations without a template to write them by."""
    if is_conversational(dataset[0]) and tokenizer.chat_template is None:
        raise LabelguardError(
            "the rows are conversations, and the tokenizer has no chat template: take an "
            "instruction-tuned model, or set tokenizer.chat_template"
        )


def drop_equal_sides(dataset: Any, args: Any, rows: int, name: str) -> Any:
    """Return the tokenized rows whose sides differ within `max_length`: others have no gradient.

    `rows` is how many there were before tokenizing, which leaves out prompts without room for an
    answer.
    """
    limit = args.max_length

    def sides_differ(row: dict[str, Any]) -> bool:
        room = None if limit is None else max(limit - len(row.get("prompt_ids", ())), 0)
        return bool(row["chosen_ids"][:room] != row["rejected_ids"][:room])

    distinct = dataset.filter(sides_differ, desc=f"Comparing the sides of the {name} data")
    if not len(distinct):
        raise LabelguardError(
            f"no row of the {name} data is left: both sides are equal within max_length={limit}"
        )
    if len(distinct) < rows:
        _log.warning(
            "%s of %s rows of the %s data are left out: their sides are equal, or too long, "
            "within max_length=%s",
            *(f"{rows - len(distinct):,}", f"{rows:,}", name, limit),
        )
    return distinct


@contextmanager
def explain_failed_write(directory: str | Path) -> Iterator[None]:
    """One line in place of a trace where a model, or what training needs, cannot be written.

    A full disk is an `OSError`, a `SafetensorError`, or a `RuntimeError` of torch's own writer.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        of_torch = any(words in str(error) for words in _TORCH_CANNOT_WRITE)
        if isinstance(error, RuntimeError) and not of_torch:
            raise
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0]
        raise LabelguardError(
            f"{directory} cannot be written ({reason}); make room there, and run the same command "
            "again"
        ) from None


@contextmanager
def explain_failed_training(args: Any, model: Any) -> Iterator[None]:
    """One line in place of a trace where memory ran out, or a file of weights is damaged."""
    name = _find_path_or_id(model) or "the model"
    try:
        yield
    except SafetensorError as error:
        raise LabelguardError(
            f"the weights of {name} are damaged or half-written: {error}"
        ) from None
    except RuntimeError as error:
        if not any(words in str(error) for words in _NO_MEMORY):
            raise
        raise LabelguardError(
            f"out of memory training {name} with per_device_train_batch_size="
            f"{args.per_device_train_batch_size} and max_length={args.max_length}: halve the batch "
            "(and double gradient_accumulation_steps), lower max_length, or train with LoRA"
        ) from error


class _WithoutTexts(logging.Filter):
    """Cuts the prompt's end out of a warning of TRL's: texts of people do not belong in a log."""

    mark = "is left out of the training sequence"

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if self.mark in message:
            record.msg, record.args = message.split(self.mark)[0] + self.mark, ()
        return True


logging.getLogger("trl.trainer.dpo_trainer").addFilter(_WithoutTexts())
