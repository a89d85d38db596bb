"""`--mechanism props --learner dpo|reward`: language models learn in between, stage by stage.

`dpo` aligns a causal language model (props, algorithm 1), whose implicit reward labels the next
stage: β(log π/π_ref)(first) − β(log π/π_ref)(second). `reward` trains a reward model (props A.5).
The last model is published as the directory `model`, whole, with its tokenizer.

Everything that can be wrong with a model, a configuration or the pairs is found here, before
anything is charged: the texts are tokenized, and a trainer is made as it will be made later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.learning.learners import LearnerOptions, Scorer
from labelguard.processes import require_one_process
from labelguard.release.model_card import find_learned_releases
from labelguard.text import Progress
from labelguard_trainer.training import settings
from labelguard_trainer.training.settings import Kind

if TYPE_CHECKING:
    from labelguard_trainer.training.stage_training import StageTraining
    from labelguard_trainer.training.stages import StageLearner


@dataclass(frozen=True)
class PreparedBase:
    """A base model, its settings and the pairs' tokens, which fit together.

    `identity` is what the model starts from and how it learns, as JSON, for ledger and card.
    """

    training: StageTraining
    identity: Mapping[str, Any]

    # Settings where the configuration says none.
    usual: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def of(cls, kind: Kind, pairs: pa.Table, options: LearnerOptions) -> Self:
        """Of distinct pairs with columns prompt, first and second.

        Raises `LabelguardError` for a model, options or pairs that do not fit together.
        """
        if options.model is None:
            raise LabelguardError(
                f"--learner {kind} needs a base model: --model ID_OR_PATH, of a hub or a directory"
            )
        extras.require_extra("train", f"--learner {kind}")
        require_one_process(f"--learner {kind}")
        before = find_learned_releases(options.model, private=True)
        lora = None if options.lora is None else settings.parse_lora(options.lora)
        config = {} if options.config is None else settings.read_config(Path(options.config))
        cls.check_settings(kind, config, lora or {})
        from labelguard_trainer.training import models
        from labelguard_trainer.training.stage_training import StageTraining

        base, values = models.identify_and_pin(options.model, config)
        chosen = {**cls.usual, **values}
        training = StageTraining.of(kind, options.model, base, lora, chosen, pairs)
        identity = {
            "model": base,
            "lora": lora,
            "training": settings.select_public_settings(chosen),
        }
        learned = {"learned_from": [asdict(release) for release in before]} if before else {}
        return cls(training, identity | learned)

    @classmethod
    def check_settings(cls, kind: Kind, config: Mapping[str, Any], lora: Mapping[str, Any]) -> None:
        """Raise `LabelguardError` for settings that the learner cannot use."""
        settings.check_stage_fields(kind, config)


@dataclass(frozen=True)
class PreparedLanguageModel(PreparedBase):
    """A base model, how each stage trains it (props A.1), and the pairs: a `PreparedLearner`."""

    usual = {  # noqa: RUF012 (see `PreparedBase`)
        "num_train_epochs": 3,
        "per_device_train_batch_size": 4,
        "learning_rate": 5e-5,
    }

    @property
    def inputs(self) -> NDArray[np.intp]:
        """The numbers of the pairs, shape (pairs,)."""
        return np.arange(len(self.training.tokens))

    def open(self, directory: Path, progress: Progress) -> StageLearner:
        """Return the learner, whose models are kept in `directory`."""
        from labelguard_trainer.training.stages import StageLearner

        return StageLearner(self.training, directory, progress)

    def files(self, scorer: Scorer, directory: Path) -> tuple[Path, ...]:
        """Return the directory `model`, as `from_pretrained` reads it; adapters are merged into
        it.
        """
        from labelguard_trainer.training.stages import StageModel

        assert isinstance(scorer, StageModel)
        return (scorer.export(directory / "model"),)


# The learner `dpo` of distinct pairs; see `labelguard.learning.learners.LearnerFactory`.
dpo = partial(PreparedLanguageModel.of, "dpo")
# The learner `reward`, likewise.
reward = partial(PreparedLanguageModel.of, "reward")
