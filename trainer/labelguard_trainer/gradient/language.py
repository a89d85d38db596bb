"""Language models as a `Problem`: DP-SGD over labelers or users, of the whole model or by LoRA.

`LanguageProblem` learns from pairs. z is the margin of a pair's first side, r(first) − r(second)
for `reward` (Ouyang et al. 2022, eq. 1) and β[log π/π_ref(first) − log π/π_ref(second)] for `dpo`
(Rafailov et al. 2023, eq. 7). The loss of a label y ∈ {0, ½, 1} is −y log σ(z) − (1−y) log σ(−z)
(aup-rlhf, section 5). `DemonstrationProblem` is supervised fine-tuning: the loss of a demonstration
is the mean negative log-likelihood over the tokens of its response.

Passes are padded to the longest of a labeler's own texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from labelguard_trainer.gradient.model import Floats, Indices, ModelProblem
from labelguard_trainer.gradient.records import Records, Sides, StepRecords
from labelguard_trainer.losses import soft
from labelguard_trainer.training.stage_training import StageTraining, tokenize


class LanguageProblem(ModelProblem):
    """A `ModelProblem` on pairs: a reward model, or a policy by DPO.

    Of the settings it reads `beta` and `per_device_eval_batch_size` too.
    """

    def __init__(self, base: StageTraining, records: Records, *, updates: int = 1) -> None:
        super().__init__(base, records, updates=updates)
        self._beta = float(self._settings["beta"])
        self._scored = int(self._settings["per_device_eval_batch_size"])
        limit = self._settings["max_length"]
        self._sides = Sides(base.tokens, limit, base.tokenizer.pad_token_id)
        self._reference = self._compute_reference_log_probs()

    def margins(self) -> Floats:
        """z of every distinct pair, shape (pairs,); of raw labels' model PRIVATE until released."""
        margins = np.zeros(len(self._sides.token_counts))
        with torch.no_grad():
            for pairs in self._batch_by_length():
                margins[pairs] = self._first_side_margins(pairs).double().cpu().numpy()
        return margins

    def _loss(self, step: StepRecords, part: slice, labels: Floats) -> Tensor:
        records = step.rows[part]
        target, weight = self._tensor(labels[records]), self._tensor(step.weights[part])
        margins = self._first_side_margins(self._records.pairs[records])
        return (weight * soft(margins, target, torch.zeros_like(target))).sum()

    def _first_side_margins(self, pairs: Indices) -> Tensor:
        """z of k pairs, shape (k,)."""
        sides = self._score_sides(pairs)
        if self._reference is not None:
            sides = self._beta * (sides - self._reference[:, pairs])
        return sides[0] - sides[1]

    def _score_sides(self, pairs: Indices) -> Tensor:
        """Rewards, or log-probabilities of responses: shape (2, k), the first sides in row 0."""
        padded = self._sides.pad(pairs)
        ids, real, response = (torch.from_numpy(part).to(self._device) for part in padded)
        if self.base.kind == "dpo":
            scores = self._token_log_probs(self._model, ids, real, response).sum(1)
        else:
            inputs = {"input_ids": ids, "attention_mask": real.long(), "use_cache": False}
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
                scores = self._model(**inputs).logits.squeeze(-1)
        sides: Tensor = scores.float().view(2, -1)
        return sides

    def _compute_reference_log_probs(self) -> Tensor | None:
        """Of both sides of every pair by the base model, shape (2, pairs), for `dpo`; public."""
        if self.base.kind == "reward":
            return None
        log_probs = torch.zeros(2, len(self._sides.token_counts), device=self._device)
        with torch.no_grad(), self._disable_adapters():
            for pairs in self._batch_by_length():
                log_probs[:, pairs] = self._score_sides(pairs)
        return log_probs

    def _batch_by_length(self) -> list[Indices]:
        """Return all pairs in batches of similar length."""
        order = np.argsort(-self._sides.token_counts.max(1), kind="stable")
        return np.split(order, range(self._scored, len(order), self._scored))


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
