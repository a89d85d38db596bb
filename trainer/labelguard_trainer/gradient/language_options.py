"""What a user says of a language model that learns by DP-SGD, checked before anything is charged.

As `--learner dpo|reward` of PROPS takes them: `--model`, `--lora`, `--train-config`. A
configuration has the fields of TRL's that mean something here: steps and cohorts of labelers are
the policy's, whose price was fixed beforehand. `max_grad_norm` is the norm that a labeler's
gradient is clipped to.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.learning.learners import LearnerOptions
from labelguard_trainer.training import lineage
from labelguard_trainer.training.public_settings import public_settings
from labelguard_trainer.training.settings import Kind, check_stage_fields, parse_lora, read_config

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


@dataclass(frozen=True)
class PreparedLanguage:
    """A base model, its settings and the pairs' tokens, which fit together.

    `identity` is what the model starts from and how it learns, as JSON, for ledger and card.
    """

    base: Course
    identity: Mapping[str, Any]

    @classmethod
    def of(cls, kind: Kind, pairs: pa.Table, options: LearnerOptions) -> PreparedLanguage:
        """Of distinct pairs with columns prompt, first and second.

        Raises `LabelguardError` for a model, options or pairs that do not fit together.
        """
        if options.model is None:
            raise LabelguardError(
                f"a {kind} model needs a base model: --model ID_OR_PATH, of a hub or a directory"
            )
        extras.require("train", f"learning a {kind} model")
        before = lineage.base_of(options.model, private=True)
        lora = None if options.lora is None else _lora(options.lora)
        given = {} if options.config is None else read_config(Path(options.config))
        _check(kind, given)
        from labelguard_trainer.training import models
        from labelguard_trainer.training.course import Course

        init = given.get("model_init_kwargs") or {}
        usual = {"max_length": models.usual_length(options.model, init)}
        base = models.identity(options.model, revision=init.get("revision"))
        init = models.pinned(options.model, base, init)
        settings = {**usual, **given, "model_init_kwargs": init}
        course = Course.of(kind, options.model, base, lora, settings, pairs)
        told = {"model": base, "lora": lora, "training": public_settings(settings)}
        learned = {"learned_from": [asdict(one) for one in before]} if before else {}
        return cls(course, told | learned)

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


def _lora(text: str) -> dict[str, Any]:
    lora = parse_lora(text)
    if lora.get("lora_dropout"):
        raise LabelguardError(
            "LoRA's dropout must be 0 here: noise is what keeps a private model from learning by "
            "heart; leave dropout out"
        )
    return lora


def _check(kind: Kind, given: Mapping[str, Any]) -> None:
    check_stage_fields(kind, given)
    unread = sorted(given.keys() - _READ)
    if unread:
        raise LabelguardError(
            f"{unread[0]} has no meaning for a gradient mechanism, whose steps are the policy's; "
            f"its configuration may have {', '.join(sorted(_READ))}"
        )
    if given.get("optim", _OPTIMIZERS[0]) not in _OPTIMIZERS:
        raise LabelguardError(f"optim must be one of {', '.join(_OPTIMIZERS)} here")
