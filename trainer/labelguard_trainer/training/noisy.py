"""Shared by trainers of noisy rows; the rest of each is TRL's trainer of the same name.

A batch says what it knows of its rows' noise; rows are scored in batches of similar length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from trl.trainer.base_trainer import _BaseTrainer

from labelguard.errors import LabelguardError
from labelguard_trainer.losses import Loss, find_loss
from labelguard_trainer.training import guard
from labelguard_trainer.training.rows import (
    AUTO,
    COLUMNS,
    FLIP,
    TARGET,
    WEIGHT,
    PreferenceLoss,
    add_loss_columns,
)

Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]


class NoisyCollator:
    """A collator's batches, with the rows' noise. Raises `LabelguardError` for rows without."""

    def __init__(self, texts: Collator) -> None:
        self.texts = texts

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        lost = [name for name in COLUMNS if name not in examples[0]]
        if lost:
            raise _explain_lost_noise(lost)
        noise = {name: torch.tensor([row[name] for row in examples]) for name in COLUMNS}
        return {**self.texts(examples), **noise}


@dataclass(frozen=True, eq=False, repr=False)
class BatchNoise:
    """Of a batch's n rows, each of shape (n,): see `rows.NoisyRows`."""

    target: Tensor
    flip_probability: Tensor
    weight: Tensor

    @classmethod
    def split(cls, batch: Mapping[str, Any]) -> tuple[BatchNoise, dict[str, Any]]:
        """Return the noise of a batch, and what is left for the model.

        Raises `LabelguardError` if it lost the noise on the way: without it, training would go on
        as if labels were true.
        """
        lost = [name for name in COLUMNS if name not in batch]
        if lost:
            raise _explain_lost_noise(lost)
        rest = {name: value for name, value in batch.items() if name not in COLUMNS}
        return cls(batch[TARGET], batch[FLIP], batch[WEIGHT]), rest

    def weigh(self, loss: Loss, margin: Tensor) -> Tensor:
        """Return the weighted loss of each row, shape (n,), by margins of shape (n,)."""
        return self.weight * loss(margin, self.target, self.flip_probability)

    def compare_signs_with_targets(self, margin: Tensor) -> Tensor:
        """Return whether a margin has the sign that its target asks for; NaN where ½ asks for
        none.
        """
        agrees = (margin * (self.target - 0.5) > 0).float()
        return agrees.masked_fill(self.target == 0.5, torch.nan)


def score_rows(
    trainer: Any, dataset: Any, collate: Collator, score: Callable[[dict[str, Any]], Tensor]
) -> NDArray[np.float64]:
    """`score` of every row in the order of the data set, no gradient: (n,) or (n, k).

    Rows of similar length share a batch of `per_device_eval_batch_size`; each process of a
    distributed run scores its share and has all scores in the end.
    """
    lengths = _measure_longer_sides(dataset)
    longest_first = np.argsort(-lengths, kind="stable")
    loader = trainer.accelerator.prepare_data_loader(
        DataLoader(
            dataset.select(longest_first),
            batch_size=trainer.args.per_device_eval_batch_size,
            collate_fn=collate,
        )
    )
    batches = []
    training = trainer.model.training
    trainer.model.eval()
    try:
        with torch.no_grad(), trainer.accelerator.autocast():
            for batch in loader:
                scores = trainer.accelerator.gather_for_metrics(score(batch))
                batches.append(scores.double().cpu().numpy())
    finally:
        trainer.model.train(training)
    scores = np.concatenate(batches)
    return np.asarray(scores[np.argsort(longest_first)])


def _measure_longer_sides(dataset: Any) -> NDArray[np.int64]:
    """Of the longer side of every row, shape (n,)."""
    columns = dataset.select_columns(["chosen_ids", "rejected_ids"]).with_format("arrow")[:]
    sides = [pc.list_value_length(columns[name]).to_numpy() for name in columns.column_names]
    longer: NDArray[np.int64] = np.maximum(sides[0], sides[1])
    return longer


def _explain_lost_noise(names: list[str]) -> LabelguardError:
    return LabelguardError(
        f"a batch has no {', '.join(names)}: something between the release and the loss (a "
        "collator, a map, remove_columns) dropped it, and noisy labels would be taken as true"
    )


@dataclass
class NoisyConfig(guard.CorrectedDefaults):
    """The fields that `DPOConfig`, `KTOConfig` and `RewardConfig` add to TRL's; see the first."""

    preference_loss: PreferenceLoss = AUTO
    non_private: bool = False


class NoisyTraining(_BaseTrainer):
    """Comes before a trainer of TRL: prepares data sets with the noise of their rows."""

    # Rows of the training set that no step is taken on: see `guard.drop_equal_sides`.
    left_out: int

    # The column that a tokenized data set has.
    _tokens: str

    # The class of its arguments.
    _config: type[Any]

    def __init__(
        self,
        model: Any,
        args: Any = None,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        data_collator: Any = None,
        **options: Any,
    ) -> None:
        args = guard.copy_or_default_config(args, self._config, model)
        for dataset in guard.collect_datasets(train_dataset, eval_dataset):
            guard.check_rows(dataset, args)
        guard.check_processes_joined(args)
        options = self._check_options(model, args, train_dataset, options)
        tokenizer = processing_class or guard.load_tokenizer_of_model(model, args)
        self._check_architecture(guard.load_checked_config(model, tokenizer, args))
        self.preference_loss = find_loss(args.preference_loss)
        with guard.explain_failed_training(args, model):
            super().__init__(
                model,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=tokenizer,
                data_collator=NoisyCollator(data_collator or self._collator(tokenizer, args)),
                **options,
            )

    def _check_options(self, model: Any, args: Any, train: Any, options: dict[str, Any]) -> Any:
        """Options that are TRL's own, once they are checked together with `args`."""
        raise NotImplementedError

    def _collator(self, tokenizer: Any, args: Any) -> Any:
        """Return what makes batches of texts."""
        raise NotImplementedError

    @staticmethod
    def _check_architecture(config: Any) -> None:
        """Raise `LabelguardError` for a model that is none of what is trained."""
        raise NotImplementedError

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """As TRL's. Raises `LabelguardError` if memory runs out, and says what to lower.

        So for a full disk, see `guard.explain_failed_write`.
        """
        with guard.explain_failed_training(self.args, self.model):
            return super().train(resume_from_checkpoint, **options)

    def prepare_for_scoring(self, dataset: Any) -> Any:
        """Return all rows of a data set as `margins` takes them after training; call it before."""
        return self._tokenize_all(dataset)

    def _run_epoch(self, **arguments: Any) -> None:
        """No step beyond the last: transformers takes one, and counts then.

        A training that was interrupted after its last step is resumed there.
        """
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(**arguments)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with guard.explain_failed_write(self.args.output_dir):
            super()._save_checkpoint(model, trial)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, name: str) -> Any:
        guard.check_rows(dataset, args)
        rows = len(dataset)
        if self._tokens not in dataset.column_names:
            guard.check_chat_template(dataset, processing_class)
            dataset = super()._prepare_dataset(dataset, processing_class, args, name)
        dataset = guard.drop_equal_sides(dataset, args, rows, name)
        if name == "train":
            self.left_out = rows - len(dataset)
        return add_loss_columns(dataset, args.preference_loss, non_private=args.non_private)

    def _tokenize_all(self, dataset: Any) -> Any:
        """Return all rows of a data set that is to be scored; what is too long is cut in its
        batch.
        """
        if self._tokens in dataset.column_names:
            return dataset
        guard.check_chat_template(dataset, self.processing_class)
        whole = copy(self.args)
        whole.max_length = None
        return super()._prepare_dataset(dataset, self.processing_class, whole, "scored")

    def _set_signature_columns_if_needed(self) -> None:
        known = self._signature_columns is not None
        super()._set_signature_columns_if_needed()
        if not known:
            self._signature_columns += COLUMNS

    def _record_means(self, **rows: Any) -> None:
        """Metrics that are means over rows, each of shape (n,): one exchange between processes.

        A row without a value (NaN) does not count. Of an evaluation every row counts once, however
        batches and processes divide them.
        """
        stacked = torch.stack(list(rows.values()), 1)
        if self._mode == "train":  # accelerate would cut each batch of the last step to the rest
            gathered = self.accelerator.gather(stacked).nanmean(0, keepdim=True)
        else:
            gathered = self.accelerator.gather_for_metrics(stacked)
        for name, values in zip(rows, gathered.T.tolist(), strict=True):
            known = [value for value in values if not math.isnan(value)]
            if known:
                self._metrics[self._mode][name].extend(known)

    def _count_tokens(self, tokens: float) -> None:
        """Tokens seen so far, of all processes."""
        if self._mode == "train":
            self._total_train_tokens += int(tokens) // self._tp_size
        self._metrics[self._mode]["num_tokens"] = [self._total_train_tokens]

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"
