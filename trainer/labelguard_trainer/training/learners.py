"""`--mechanism props --learner dpo|reward`: language models learn in between, stage by stage.

`dpo` aligns a causal language model (props, algorithm 1), whose implicit reward labels the next
stage: β(log π/π_ref)(first) − β(log π/π_ref)(second). `reward` trains a reward model (props A.5).
The last model is published as the directory `model`, whole, with its tokenizer.

Everything that can be wrong with a model, a configuration or the pairs is found here, before
anything is charged: the texts are tokenized, and a trainer is made as it will be made later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.learning.learners import LearnerOptions, Scorer
from labelguard.terms import Progress
from labelguard_trainer.training.request import base_of
from labelguard_trainer.training.settings import (
    Kind,
    check_stage_fields,
    parse_lora,
    public_settings,
    read_config,
)

if TYPE_CHECKING:
    from labelguard_trainer.training.course import Course
    from labelguard_trainer.training.stages import StageLearner


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
        before = base_of(options.model, private=True)
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


PAPER = {"num_train_epochs": 3, "per_device_train_batch_size": 4, "learning_rate": 5e-5}
"""How each stage is trained (props A.1), unless the configuration says otherwise."""


def dpo(pairs: pa.Table, options: LearnerOptions) -> PreparedLanguageModel:
    """The learner `dpo` of distinct pairs; see `labelguard.learning.learners.LearnerFactory`."""
    return PreparedLanguageModel.of("dpo", pairs, options)


def reward(pairs: pa.Table, options: LearnerOptions) -> PreparedLanguageModel:
    """The learner `reward`, likewise."""
    return PreparedLanguageModel.of("reward", pairs, options)


@dataclass(frozen=True)
class PreparedLanguageModel:
    """A base model, how it is trained, and the pairs' tokens: a `PreparedLearner`.

    `inputs`, shape (pairs,), numbers the pairs.
    """

    course: Course
    inputs: NDArray[np.intp]
    identity: Mapping[str, Any]

    @classmethod
    def of(cls, kind: Kind, pairs: pa.Table, options: LearnerOptions) -> PreparedLanguageModel:
        """Raises `LabelguardError` for a model, options or pairs that do not fit together."""
        check = functools.partial(check_stage_fields, kind)
        base = Base.of(kind, pairs, options, PAPER, check=check)
        return cls(base.course, np.arange(pairs.num_rows), base.identity)

    def open(self, directory: Path, progress: Progress) -> StageLearner:
        """The learner, whose models are kept in `directory`."""
        from labelguard_trainer.training.stages import StageLearner

        return StageLearner(self.course, directory, progress)

    def files(self, scorer: Scorer, directory: Path) -> tuple[Path, ...]:
        """The directory `model`, as `from_pretrained` reads it; adapters are merged into it."""
        from labelguard_trainer.training.stages import StageModel

        assert isinstance(scorer, StageModel)
        return (scorer.export(directory / "model"),)
