"""The base model that a learner of `privatize` begins from, and how it is to be trained.

Everything that can be wrong with a model, a configuration or the pairs is found here, before
anything is charged: the texts are tokenized, and a trainer is made as it will be made later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.learning.learners import LearnerOptions
from labelguard_trainer.training import lineage
from labelguard_trainer.training.public_settings import public_settings
from labelguard_trainer.training.settings import Kind, parse_lora, read_config

if TYPE_CHECKING:
    from labelguard_trainer.training.course import Course

__all__ = ["Base"]

Check = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Base:
    """A base model, its settings and the pairs' tokens, which fit together.

    `identity` is what the model starts from and how it learns, as JSON, for ledger and card.
    """

    course: Course
    identity: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        kind: Kind,
        pairs: pa.Table,
        options: LearnerOptions,
        usual: Mapping[str, Any],
        *,
        check: Check,
        check_lora: Check = lambda lora: None,
    ) -> Base:
        """Of distinct pairs with columns prompt, first and second.

        `usual` are settings where the configuration says none; `check` and `check_lora` raise for
        what the learner cannot do. Raises `LabelguardError` for a model, options or pairs that do
        not fit together.
        """
        if options.model is None:
            raise LabelguardError(
                f"--learner {kind} needs a base model: --model ID_OR_PATH, of a hub or a directory"
            )
        extras.require("train", f"--learner {kind}")
        before = lineage.base_of(options.model, private=True)
        lora = None if options.lora is None else parse_lora(options.lora)
        if lora is not None:
            check_lora(lora)
        given = {} if options.config is None else read_config(Path(options.config))
        check(given)
        from labelguard_trainer.training import models
        from labelguard_trainer.training.course import Course

        init = given.get("model_init_kwargs") or {}
        usual = {**usual, "max_length": models.usual_length(options.model, init)}
        base = models.identity(options.model, revision=init.get("revision"))
        init = models.pinned(options.model, base, init)
        settings = {**usual, **given, "model_init_kwargs": init}
        course = Course.of(kind, options.model, base, lora, settings, pairs)
        told = {"model": base, "lora": lora, "training": public_settings(settings)}
        learned = {"learned_from": [asdict(one) for one in before]} if before else {}
        return cls(course, told | learned)
