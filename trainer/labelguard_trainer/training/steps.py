"""The steps `dpo` and `reward` of a retraining job: what `labelguard train` does, run after run.

Each model is trained from the same base model on the newest release, which holds the labels of all
earlier ones with the values that they were released with.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from labelguard import extras
from labelguard.configuration.loader import SettingsTable, setting
from labelguard.errors import LabelguardError
from labelguard.jobs.steps import TrainedModel, TrainingTask, parse_options
from labelguard.processes import require_one_process
from labelguard.release.item_keys import PAIRS
from labelguard.release.model_card import find_learned_releases
from labelguard.storage.files import hash_file
from labelguard.text import no_progress
from labelguard_trainer.training.rows import AUTO, PreferenceLoss
from labelguard_trainer.training.settings import Kind, parse_lora, read_config

if TYPE_CHECKING:
    from labelguard_trainer.training.stage_training import StageTraining


# Fields of a training's configuration that say how pairs are scored, too.
_SCORING = (
    *("beta", "bf16", "fp16", "max_length", "model_init_kwargs", "truncation_mode"),
    *("per_device_eval_batch_size", "trust_remote_code", "use_cpu"),
)
# Seconds that a hub may take to answer.
_SECONDS = 10.0
_CURVE = ("step", "loss", "agreement", "eval_loss", "eval_agreement")


class TrainOptions(SettingsTable):
    """Options of a job for a language model's training; as the options of `labelguard train`."""

    model: str = Field(description="the model to begin from: a directory, or an id of the hub")
    train_config: str | None = setting("a YAML file with fields of the trainer's configuration")
    lora: str | None = setting("train a low-rank adapter, for example r=16,alpha=32")
    loss: PreferenceLoss = setting("the loss of rows; auto is what the release says", AUTO)
    holdout: float = setting("share of the items that the model does not learn from", 0.1)


class _TrainStep:
    """A training of one kind; paths are relative to `base`, the directory of job.yaml."""

    kind: ClassVar[Kind]
    gates = ("released", "probes")

    def __init__(self, options: Mapping[str, Any], base: Path) -> None:
        if not options.get("model"):
            raise LabelguardError(
                "train.options.model is missing: a directory, or an id of a hub; such as "
                "model: base"
            )
        self.options = parse_options(TrainOptions, options)
        self.holdout = self.options.holdout
        self._base = base
        self._scoring: tuple[pa.Table, StageTraining, NDArray[np.float64] | None] | None = None

    @property
    def name(self) -> str:
        """As in `labelguard.steps`."""
        return self.kind

    def check(self, mechanism: str, coordinates: Path | None) -> None:
        """The extra, the configuration, and where its base model comes from."""
        extras.require_extra("train", f"train.step: {self.kind}")
        require_one_process(f"train.step: {self.kind}")
        find_learned_releases(self._model_path_or_id, private=True)
        self._config()
        if self.options.lora is not None:
            parse_lora(self.options.lora)
        self._check_model()

    def _check_model(self) -> None:
        """A directory must hold all of a model. A hub is asked once, where the model is not here:
        loading would try for long.
        """
        from huggingface_hub import HfApi

        from labelguard_trainer.training import models

        name, path = self.options.model, self._model_path_or_id
        if Path(path).is_dir():
            trust = {"trust_remote_code": bool(self._config().get("trust_remote_code"))}
            models.load_config(path, **trust)
            models.load_tokenizer(path, **trust)
            init = self._config().get("model_init_kwargs") or {}
            models.check_weights_complete(self.kind, path, trust | init)
            return
        if name.startswith((".", "/", "~")) or name.count("/") > 1:  # no id of a hub is like this
            raise LabelguardError(f"train.options.model: there is no directory {self._base / name}")
        try:
            models.load_config(name, local_files_only=True)
        except LabelguardError:
            try:
                HfApi().model_info(name, timeout=_SECONDS)
            except Exception as error:  # its own kinds of errors, and those of what it asks with
                raise LabelguardError(
                    f"train.options.model: there is no directory {self._base / name}, and the hub "
                    f"does not have it or cannot be asked ({type(error).__name__})"
                ) from None
            models.load_config(name)

    def identity(self) -> Mapping[str, Any]:
        """Return the options, the base model's identity and the configuration's digest."""
        from labelguard_trainer.training import models

        path = self._config_file
        files = {
            "model": models.identity(self._model_path_or_id),
            "train_config": path and hash_file(path),
        }
        return self.options.model_dump() | files

    def train(self, task: TrainingTask) -> TrainedModel:
        """As `labelguard train`; what was interrupted goes on at its last checkpoint."""
        from labelguard_trainer.training.run import train

        if not task.output.is_dir():
            task.progress(f"training: {self.kind}", None)
            train(
                self.kind,
                task.release,
                self._model_path_or_id,
                output=task.output,
                config=self._config_file,
                lora=self.options.lora,
                loss=self.options.loss,
                holdout=self.options.holdout,
                progress=task.progress,
            )
        lines = (task.output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        metrics = [json.loads(line) for line in lines]
        curve = [
            {name: line[name] for name in _CURVE if line.get(name) is not None} for line in metrics
        ]
        steps = max((int(line["step"]) for line in metrics), default=0)
        return TrainedModel({"base": Path(self._model_path_or_id).name, "steps": steps}, curve)

    def margins(self, model: Path, pairs: pa.Table) -> NDArray[np.float64]:
        """As the trainer's own; 0 where both sides are equal within `max_length`."""
        from labelguard_trainer.training.reporting import silence_libraries

        training, reference = self._prepare_scoring(pairs)
        margins = np.zeros(pairs.num_rows)
        with tempfile.TemporaryDirectory() as directory, silence_libraries():
            whole = Path(directory, "whole")
            if (model / "adapter_config.json").exists():
                training.merge_adapters(model).save_pretrained(whole)
            else:
                whole = model
            trainer = training.trainer(Path(directory), training.example, whole)
            margins[training.comparable_pairs] = trainer.margins(
                training.rows(training.comparable_pairs, reference)
            )
        if not np.isfinite(margins).all():
            raise LabelguardError(f"the model in {model.name} says no number of some pairs")
        return margins

    def _prepare_scoring(self, pairs: pa.Table) -> tuple[StageTraining, NDArray[np.float64] | None]:
        """Return the pairs' tokens and what the base model says of them, once for all models
        asked.
        """
        if self._scoring is None or self._scoring[0] is not pairs:
            from labelguard_trainer.training import models
            from labelguard_trainer.training.stage_training import StageTraining
            from labelguard_trainer.training.stages import StageLearner

            scoring = {name: value for name, value in self._config().items() if name in _SCORING}
            base, settings = models.identify_and_pin(self._model_path_or_id, scoring)
            sides = pa.table([pairs[name] for name in PAIRS], names=["prompt", "first", "second"])
            training = StageTraining.of(
                self.kind, self._model_path_or_id, base, None, settings, sides
            )
            with tempfile.TemporaryDirectory() as directory:
                reference = StageLearner(training, Path(directory), no_progress).reference
            self._scoring = (pairs, training, reference)
        return self._scoring[1:]

    @property
    def _model_path_or_id(self) -> str:
        """A directory, if there is one of that name, or the id of a hub."""
        path = self._base / self.options.model
        return str(path) if path.is_dir() else self.options.model

    @property
    def _config_file(self) -> Path | None:
        return self._base / self.options.train_config if self.options.train_config else None

    def _config(self) -> dict[str, Any]:
        return read_config(self._config_file) if self._config_file else {}


class Dpo(_TrainStep):
    """Direct preference optimization of a language model."""

    kind = "dpo"


class Reward(_TrainStep):
    """A reward model."""

    kind = "reward"
