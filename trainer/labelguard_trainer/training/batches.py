"""What a batch says of its rows' noise, and scores of all rows of a data set in batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from labelguard.errors import LabelguardError
from labelguard_trainer.training.losses import Loss
from labelguard_trainer.training.rows import COLUMNS, FLIP, TARGET, WEIGHT

__all__ = ["BatchNoise", "NoisyCollator", "score_rows"]

Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]


class NoisyCollator:
    """A collator's batches, with the rows' noise. Raises `LabelguardError` for rows without."""

    def __init__(self, texts: Collator) -> None:
        self.texts = texts

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        lost = [name for name in COLUMNS if name not in examples[0]]
        if lost:
            raise _lost(lost)
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
        """The noise of a batch, and what is left for the model.

        Raises `LabelguardError` if it lost the noise on the way: without it, training would go on
        as if labels were true.
        """
        lost = [name for name in COLUMNS if name not in batch]
        if lost:
            raise _lost(lost)
        rest = {name: value for name, value in batch.items() if name not in COLUMNS}
        return cls(batch[TARGET], batch[FLIP], batch[WEIGHT]), rest

    def mean(self, loss: Loss, margin: Tensor) -> Tensor:
        """The weighted loss of margins of shape (n,), over the batch's n rows."""
        return (self.weight * loss(margin, self.target, self.flip_probability)).mean()

    def agreement(self, margin: Tensor) -> Tensor:
        """Whether a margin has the sign that its target asks for; NaN where ½ asks for none."""
        agrees = (margin * (self.target - 0.5) > 0).float()
        return agrees.masked_fill(self.target == 0.5, torch.nan)


def score_rows(
    trainer: Any, dataset: Any, collate: Collator, score: Callable[[dict[str, Any]], Tensor]
) -> NDArray[np.float64]:
    """`score` of every row in the order of the data set, no gradient: (n,) or (n, k).

    Rows of similar length share a batch of `per_device_eval_batch_size`; each process of a
    distributed run scores its share and has all scores in the end.
    """
    lengths = _lengths(dataset)
    longest_first = np.argsort(-lengths, kind="stable")
    loader = trainer.accelerator.prepare_data_loader(
        DataLoader(
            dataset.select(longest_first),
            batch_size=trainer.args.per_device_eval_batch_size,
            collate_fn=collate,
        )
    )
    found = []
    training = trainer.model.training
    trainer.model.eval()
    try:
        with torch.no_grad(), trainer.accelerator.autocast():
            for batch in loader:
                scores = trainer.accelerator.gather_for_metrics(score(batch))
                found.append(scores.double().cpu().numpy())
    finally:
        trainer.model.train(training)
    scores = np.concatenate(found)
    return np.asarray(scores[np.argsort(longest_first)])


def _lengths(dataset: Any) -> NDArray[np.int64]:
    """Of the longer side of every row, shape (n,)."""
    columns = dataset.select_columns(["chosen_ids", "rejected_ids"]).with_format("arrow")[:]
    sides = [pc.list_value_length(columns[name]).to_numpy() for name in columns.column_names]
    longer: NDArray[np.int64] = np.maximum(sides[0], sides[1])
    return longer


def _lost(names: list[str]) -> LabelguardError:
    return LabelguardError(
        f"a batch has no {', '.join(names)}: something between the release and the loss (a "
        "collator, a map, remove_columns) dropped it, and noisy labels would be taken as true"
    )
