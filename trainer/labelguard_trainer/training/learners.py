"""`--mechanism props --learner dpo|reward`: language models learn in between, stage by stage.

`dpo` aligns a causal language model (props, algorithm 1), whose implicit reward labels the next
stage: β(log π/π_ref)(first) − β(log π/π_ref)(second). `reward` trains a reward model (props A.5).
The last model is published as the directory `model`, whole, with its tokenizer.

What can be wrong is found before anything is charged (`training.base`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.learning.learners import LearnerOptions, Scorer
from labelguard.terms import Progress
from labelguard_trainer.training.base import Base
from labelguard_trainer.training.settings import Kind, check_stage_fields

if TYPE_CHECKING:
    from labelguard_trainer.training.course import Course
    from labelguard_trainer.training.stages import StageLearner

__all__ = ["PreparedLanguageModel", "dpo", "reward"]

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
