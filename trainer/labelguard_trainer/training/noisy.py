"""What trainers of noisy rows share; the rest of each is TRL's trainer of the same name."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import torch
from trl.trainer.base_trainer import _BaseTrainer

from labelguard_trainer.training import guard
from labelguard_trainer.training.rows import COLUMNS, with_noise

__all__ = ["NoisyTraining"]


class NoisyTraining(_BaseTrainer):
    """Comes before a trainer of TRL: prepares data sets with the noise of their rows."""

    left_out: int
    """Rows of the training set that no step is taken on: see `guard.distinguishable`."""

    _tokens: str
    """The column that a tokenized data set has."""

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """As TRL's. Raises `LabelguardError` for a half-written checkpoint, and if memory runs out.

        The latter says what to lower. So for a full disk, see `guard.saving`.
        """
        if resume_from_checkpoint:
            guard.check_checkpoint(resume_from_checkpoint, self.args.output_dir)
        with guard.enough_memory(self.args, self.model):
            return super().train(resume_from_checkpoint, **options)

    def scorable(self, dataset: Any) -> Any:
        """All rows of a data set as `margins` takes them after training; call it before."""
        return self._tokenized(dataset)

    def _run_epoch(self, **given: Any) -> None:
        """No step beyond the last: transformers takes one, and counts then.

        A training that was interrupted after its last step is resumed there.
        """
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(**given)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with guard.saving(self.args.output_dir):
            super()._save_checkpoint(model, trial)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, name: str) -> Any:
        guard.check_rows(dataset, args)
        rows = len(dataset)
        if self._tokens not in dataset.column_names:
            guard.check_texts(dataset, processing_class)
            dataset = super()._prepare_dataset(dataset, processing_class, args, name)
        dataset = guard.distinguishable(dataset, args, rows, name)
        if name == "train":
            self.left_out = rows - len(dataset)
        return with_noise(dataset, args.preference_loss, non_private=args.non_private)

    def _tokenized(self, dataset: Any) -> Any:
        """All rows of a data set that is to be scored; what is too long is cut in its batch."""
        if self._tokens in dataset.column_names:
            return dataset
        guard.check_texts(dataset, self.processing_class)
        whole = copy(self.args)
        whole.max_length = None
        return super()._prepare_dataset(dataset, self.processing_class, whole, "scored")

    def _set_signature_columns_if_needed(self) -> None:
        known = self._signature_columns is not None
        super()._set_signature_columns_if_needed()
        if not known:
            self._signature_columns += COLUMNS

    def _record(self, **rows: Any) -> None:
        """Metrics that are means over rows, each of shape (n,): one exchange between processes.

        A row without a value (NaN) does not count.
        """
        stacked = torch.stack(list(rows.values()), 1)
        if self._mode == "train":  # accelerate would cut each batch of the last step to the rest
            gathered = self.accelerator.gather(stacked)
        else:
            gathered = self.accelerator.gather_for_metrics(stacked)
        for name, mean in zip(rows, gathered.nanmean(0).tolist(), strict=True):
            if not math.isnan(mean):
                self._metrics[self._mode][name].append(mean)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"
