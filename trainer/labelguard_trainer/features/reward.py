"""The provider `reward:ID_OR_PATH`: what a reward model says of each response, one number.

A reward model is a sequence-classification model with one label. Its scalar is computed as its
authors' own pipeline would: prompt and response in the chat template of its tokenizer, plain texts
as a user's message and an assistant's; without a template, as lines. Everything else, from cache to
batches, is an encoder's (`encoder`).

A reward model that was trained on raw labels of the same people is no public feature.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.learning.columns import content_column
from labelguard.learning.providers import Features, State
from labelguard_trainer.features.encoder import FrozenJudge
from labelguard_trainer.features.providers import (
    EXTRA,
    build_judge_config,
    check_architecture,
    read_json,
)
from labelguard_trainer.features.tokens import DistinctTexts

if TYPE_CHECKING:
    import torch

_HEAD = "ForSequenceClassification"


def reward(options: str, state: State | None) -> RewardScore:
    """Return the provider `reward:ID_OR_PATH`; d = 1.

    A model directory, or the name of one on the Hugging Face hub; options `template=chat|lines`
    (default: chat if the tokenizer has a template), `max_tokens=N`, `dtype=float32|bfloat16`.
    Code that comes with a model is never run, and weights are read from safetensors only. Raises
    `LabelguardError` for a model that gives no scalar.
    """
    extras.require_extra(EXTRA, "features reward")
    return RewardScore(build_judge_config("reward", "reward", options, _check_scalar))


reward.extra = EXTRA  # type: ignore[attr-defined]  # see `features.check_features`


class RewardScore(FrozenJudge):
    """The scalar of a reward model for (prompt, response), cached; nothing is learnt from pairs."""

    _model_class = "AutoModelForSequenceClassification"
    _padding_is_set = threading.Lock()

    def names(self) -> tuple[str, ...]:
        """`reward`."""
        return ("reward",)

    def scores(self, pairs: pa.Table) -> Features:
        """Return the reward of the first side of each pair, shape (n,)."""
        texts = self._list_distinct_texts(pairs)
        return (
            self._encode_with_cache(texts)[texts.first, 0]
            if pairs.num_rows
            else np.zeros(0, np.float32)
        )

    def _list_distinct_texts(self, pairs: pa.Table) -> DistinctTexts:
        chats = _to_chats(pairs) if self.config.template == "chat" else pairs
        return super()._list_distinct_texts(chats)

    def _compute_vectors(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Scores of a batch, (b, t), (b, t) → (b, 1)."""
        # A model that reads the last token finds it by what is no padding. Without a token of its
        # own for that, any will do that is not in the texts; the mask hides it from the model.
        if self._input_tokenizer.padded:
            padding = self._input_tokenizer.padding
        else:
            used = set(ids[mask].tolist())
            padding = next(number for number in range(len(used) + 1) if number not in used)
            ids = ids.masked_fill(~mask, padding)
        # Such a token is of one batch alone, and others are computed at the same time.
        with nullcontext() if self._input_tokenizer.padded else self._padding_is_set:
            for config in (self._model.config, self._model.config.get_text_config()):
                config.pad_token_id = padding
            logits: torch.Tensor = self._model(input_ids=ids, attention_mask=mask.long()).logits
        return logits


def _check_scalar(directory: Path) -> None:
    """Raise `LabelguardError` unless a model's own files say that it gives one number."""
    check_architecture(
        directory,
        (_HEAD,),
        "is no reward model: expected a sequence-classification model",
        "; an encoder goes with hf:ID_OR_PATH",
    )
    settings = read_json(directory / "config.json")
    labels = len(settings["id2label"]) if "id2label" in settings else settings.get("num_labels", 2)
    if labels != 1:
        raise LabelguardError(
            f"{directory} is no reward model: expected one label, whose logit is the reward, found "
            f"{labels} labels; a classifier says which class, not how good a response is"
        )


def _to_chats(pairs: pa.Table) -> pa.Table:
    """Return the same pairs; plain texts as a user's message and an assistant's answers."""
    columns = {}
    for name, role in (("prompt", "user"), ("first", "assistant"), ("second", "assistant")):
        column = content_column(pairs, name)
        if pa.types.is_large_string(column.type):
            roles = pa.repeat(pa.scalar(role, pa.large_string()), len(column))
            messages = pa.StructArray.from_arrays([roles, column], names=["role", "content"])
            column = pa.LargeListArray.from_arrays(
                pa.array(np.arange(len(column) + 1), pa.int64()), messages
            )
        columns[name] = column
    return pa.table(columns)
