"""What a user says of a language model that learns by DP-SGD, checked before anything is charged.

As `--learner dpo|reward` of PROPS takes them: `--model`, `--lora`, `--train-config`. A
configuration has the fields of TRL's that mean something here: steps and cohorts of labelers are
the policy's, whose price was fixed beforehand. `max_grad_norm` is the norm that a labeler's
gradient is clipped to.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from labelguard.errors import LabelguardError
from labelguard.learning.learners import LearnerOptions
from labelguard_trainer.training.base import Base
from labelguard_trainer.training.settings import Kind, check_stage_fields

if TYPE_CHECKING:
    from labelguard_trainer.gradient.language import LanguageProblem
    from labelguard_trainer.gradient.records import Records
    from labelguard_trainer.training.course import Course

__all__ = ["PreparedLanguage"]

_READ = frozenset(
    {
        "beta",
        "bf16",
        "learning_rate",
        "max_grad_norm",
        "max_length",
        "model_init_kwargs",
        "optim",
        "per_device_eval_batch_size",
        "per_device_train_batch_size",
        "seed",
        "use_cpu",
    }
)
_OPTIMIZERS = ("adamw_torch", "sgd")
_RANGES = {"beta": (1e-6, 1e6), "max_grad_norm": (1e-12, 1e12)}
"""Beyond, gradients or noise are lost in single precision."""


@dataclass(frozen=True)
class PreparedLanguage:
    """A base model that learns by noisy steps; `identity` is that of `training.base.Base`."""

    base: Course
    identity: Mapping[str, Any]

    @classmethod
    def of(cls, kind: Kind, pairs: pa.Table, options: LearnerOptions) -> PreparedLanguage:
        """Of distinct pairs with columns prompt, first and second.

        Raises `LabelguardError` for a model, options or pairs that do not fit together.
        """
        check = functools.partial(_check, kind)
        found = Base.of(kind, pairs, options, {}, check=check, check_lora=_check_lora)
        return cls(found.course, found.identity)

    @property
    def clip(self) -> float | None:
        """The clip norm, if one was asked for."""
        asked = self.base.settings.get("max_grad_norm")
        return None if asked is None else float(asked)

    def open(self, records: Records, device: str | None = None) -> LanguageProblem:
        """The model, ready to learn from these records."""
        from labelguard_trainer.gradient.language import LanguageProblem

        gc.collect()  # the trainer by which settings were checked is full of cycles, and of weights
        return LanguageProblem(self.base, records, device=device)


def _check_lora(lora: Mapping[str, Any]) -> None:
    if lora.get("lora_dropout"):
        raise LabelguardError(
            "LoRA's dropout must be 0 here: noise is what keeps a private model from learning by "
            "heart; leave dropout out"
        )


def _check(kind: Kind, given: Mapping[str, Any]) -> None:
    check_stage_fields(kind, given)
    unread = sorted(given.keys() - _READ)
    if unread:
        raise LabelguardError(
            f"{unread[0]} has no meaning for a gradient mechanism, whose steps are the policy's; "
            f"its configuration may have {', '.join(sorted(_READ))}"
        )
    for name in _RANGES.keys() & given:
        low, high = _RANGES[name]
        if not (isinstance(given[name], int | float) and low <= given[name] <= high):
            raise LabelguardError(f"{name} must be between {low:g} and {high:g} here")
    if given.get("optim", _OPTIMIZERS[0]) not in _OPTIMIZERS:
        raise LabelguardError(f"optim must be one of {', '.join(_OPTIMIZERS)} here")
