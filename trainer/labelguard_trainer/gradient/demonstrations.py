"""Supervised fine-tuning as a `Problem`: the negative log-likelihood of what people showed.

The loss of a demonstration is the mean over the tokens of its response.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from labelguard_trainer.gradient.model import Floats, ModelProblem
from labelguard_trainer.gradient.records import Records, Sides, StepRecords
from labelguard_trainer.training.stage_training import StageTraining, tokenize


class DemonstrationProblem(ModelProblem):
    """A `ModelProblem` on demonstrations, whose tokens `tokenize_demonstrations` makes."""

    def __init__(self, base: StageTraining, records: Records, *, updates: int = 1) -> None:
        super().__init__(base, records, updates=updates)
        limit = self._settings["max_length"]
        self._sides = Sides(base.tokens, limit, base.tokenizer.pad_token_id)

    def _loss(self, step: StepRecords, part: slice, labels: Floats) -> Tensor:
        rows = step.rows[part]
        padded = self._sides.pad(rows)
        # The first sides alone: a demonstration has one.
        ids, real, response = (
            torch.from_numpy(each[: len(rows)]).to(self._device) for each in padded
        )
        log_probs = self._token_log_probs(self._model, ids, real, response).sum(1)
        lengths = response.sum(1).clamp(min=1)
        return -(self._tensor(step.weights[part]) * log_probs / lengths).sum()


def tokenize_demonstrations(tokenizer: Any, prompts: pa.Array, responses: pa.Array) -> pa.Table:
    """Return the tokens of texts, as a `Sides` has them, whose second sides are empty."""
    pairs = pa.table({"prompt": prompts, "first": responses, "second": responses})
    tokens = tokenize("dpo", pairs, tokenizer)
    place = tokens.schema.get_field_index("rejected_ids")
    nothing = pa.array([[]] * len(tokens), tokens.schema.field(place).type)
    return tokens.set_column(place, "rejected_ids", nothing)
