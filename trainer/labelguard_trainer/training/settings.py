"""Settings of a training run by its user: LoRA on one line, and a YAML file of the trainer's
fields.

Settings may name accounts, directories and people's projects, which are nobody else's business:
`select_public_settings` is what cards and the ledger say of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from labelguard.configuration import loader
from labelguard.errors import LabelguardError

# The kind of model that is trained: a language model by DPO, or a reward model.
Kind: TypeAlias = Literal["dpo", "reward"]
# A stage of an alignment.
StageName: TypeAlias = Literal["sft", "reward", "rl"]

_LORA = "r=16,alpha=32[,dropout=0.05][,targets=c_attn+c_proj]"
_AT_LEAST_1 = ("a whole number of at least 1", int, lambda value: value >= 1)
# Of each: the argument of `peft.LoraConfig`, what it must be, how it is read and checked.
_FIELDS: Mapping[str, tuple[str, tuple[str, Callable[[str], Any], Callable[[Any], bool]]]] = {
    "r": ("r", _AT_LEAST_1),
    "alpha": ("lora_alpha", _AT_LEAST_1),
    "dropout": ("lora_dropout", ("in [0, 1)", float, lambda value: 0 <= value < 1)),
    "targets": ("target_modules", ("names of modules joined by +", lambda t: t.split("+"), all)),
}

# Said by the command's own options, or decided by where a run works.
_OURS = {
    "output_dir": "the output is where the command puts it (-o)",
    "preference_loss": "the loss is an option (--loss)",
    "loss_type": "the loss is an option (--loss); of IPO write a script with DPOTrainer",
    "non_private": "it has to be typed (--non-private)",
    "chat_template_path": "save the chat template with the model's tokenizer",
    "resume_from_checkpoint": "the same command resumes what was interrupted",
    "reward_weights": "public rewards are added by weight in the recipe (reward: mix)",
}

_SECRET = "a secret has no place in a file; set HF_TOKEN in the environment"
_IN_INIT = {
    "token": _SECRET,
    "use_auth_token": _SECRET,
    "trust_remote_code": "it is a field of its own, of the tokenizer too",
    "code_revision": "a model's code is that of its own revision",
}


def parse_lora(text: str) -> dict[str, Any]:
    """`r=16,alpha=32[,dropout=.05][,targets=c_attn+c_proj]` as arguments of `peft.LoraConfig`.

    Without `targets` peft chooses by the model's kind. Raises `LabelguardError`, naming the field.
    """
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, word = (word.strip() for word in part.partition("="))
        argument, (wanted, read, fits) = _FIELDS.get(name, ("", _AT_LEAST_1))
        if not argument or not equals or argument in given:
            raise LabelguardError(f"LoRA is written {_LORA}, found {part.strip()!r}")
        with suppress(ValueError):
            given[argument] = read(word)
        if argument not in given or not fits(given[argument]):
            raise LabelguardError(f"LoRA's {name} must be {wanted}, found {word!r}")
    for name in ("r", "alpha"):
        if _FIELDS[name][0] not in given:
            raise LabelguardError(f"LoRA is written {_LORA}: {name} is missing")
    return given


def read_config(path: Path) -> dict[str, Any]:
    """Return the fields of a `DPOConfig` or `RewardConfig` in a YAML file: a mapping, or nothing.

    Raises `LabelguardError` if it cannot be read as one.
    """
    return loader.read_settings_file(path, empty=True)


def check_fields(kind: str, given: Mapping[str, Any]) -> None:
    """Raise `LabelguardError` for a field that the trainer's config lacks, or that we set.

    `kind` is a `Kind`, or sft, rloo or grpo, whose configurations are TRL's. So for secrets: what a
    config holds is copied to places where others read.
    """
    import trl

    import labelguard_trainer

    names = {"dpo": "DPO", "reward": "Reward", "sft": "SFT", "rloo": "RLOO", "grpo": "GRPO"}
    home = labelguard_trainer if kind in get_args(Kind) else trl
    config = getattr(home, f"{names[kind]}Config")
    known = [field.name for field in fields(config) if field.init]
    for name in given:
        if reason := _find_refusal_reason(name):
            raise LabelguardError(f"{name} cannot be set in a config: {reason}")
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise LabelguardError(f"{config.__name__} has no field {name!r}{hint}")
    init = given.get("model_init_kwargs") or {}
    if not isinstance(init, dict):
        raise LabelguardError("model_init_kwargs must hold lines of `name: value`")
    for name in sorted(_IN_INIT.keys() & init):
        raise LabelguardError(f"{name} cannot be set in model_init_kwargs: {_IN_INIT[name]}")


def check_stage_fields(kind: Kind, given: Mapping[str, Any]) -> None:
    """As `check_fields`, for models that learn while a release is made.

    Their process reads raw labels before, which code that came with a model must not meet.
    """
    check_fields(kind, given)
    if "trust_remote_code" in given:
        raise LabelguardError(
            "trust_remote_code cannot be set for a learner: a model's own code would run in the "
            "process that reads raw labels; take a model that transformers knows"
        )


def _find_refusal_reason(name: str) -> str | None:
    """Return why a field cannot be set; None if it can."""
    if name == "hub_token":
        return _SECRET
    if name.startswith(("hub_", "push_to_hub")):
        return "publish the finished model: labelguard train publish"
    return _OURS.get(name)


_NUMBERS = {
    *("adam_beta1", "adam_beta2", "adam_epsilon", "beta", "bf16", "center_rewards_coefficient"),
    *("data_seed", "disable_dropout", "fp16", "gradient_accumulation_steps"),
    *("gradient_checkpointing", "label_smoothing_factor", "learning_rate", "max_grad_norm"),
    *("max_completion_length", "max_length", "max_steps", "neftune_noise_alpha"),
    *("num_generations", "num_iterations", "num_train_epochs", "temperature", "top_k", "top_p"),
    *("per_device_eval_batch_size", "per_device_train_batch_size", "precompute_ref_log_probs"),
    *("router_aux_loss_coef", "seed", "warmup_steps", "weight_decay"),
}
_CHOICES = frozenset({"lr_scheduler_type", "optim"})  # texts of a list that the trainer checks


def select_public_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that say how a model was trained, and `digest`, which is of all settings.

    Equal digests are equal settings: what is not shown can still be told to be the same.
    """
    shown = {
        name: value
        for name, value in settings.items()
        if name in _CHOICES or (name in _NUMBERS and isinstance(value, int | float | None))
    }
    text = json.dumps(settings, sort_keys=True, default=str)
    return {**shown, "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}


def replace_model_in_spec(spec: str, change: Callable[[str], str]) -> str:
    """Return a specification of features, such as `reward:ID,…`, with another name of its model."""
    kind, colon, options = spec.partition(":")
    model, comma, rest = options.partition(",")
    return f"{kind}{colon}{change(model) if model else ''}{comma}{rest}"


def hide_directory(model: str) -> str:
    """Return a model as it is told to others, who need not know where it lies here."""
    return Path(model).absolute().name if Path(model).exists() else model
