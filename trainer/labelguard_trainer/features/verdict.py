"""The provider `verdict`: which of two responses a public judge prefers, one number a pair.

`verdict:NAME` reads numbers of the input: NAME_a and NAME_b, or one column NAME that is above 0
where response_a is preferred. `verdict:model=ID_OR_PATH` asks a language model, in both orders:
with l(P, A, B) its log-odds of the answer A over B to a question that shows A first, the number is
½ (l(P, A, B) − l(P, B, A)), so that whatever it thinks of first places cancels. Everything else,
from cache to batches, is an encoder's (`encoder`).

A model that was trained on raw labels of the same people is no public judge.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.learning import columns
from labelguard.learning.columns import content_column, is_verdict_of_model
from labelguard.learning.providers import FeatureProvider, Features, State
from labelguard_trainer.features.encoder import FrozenJudge
from labelguard_trainer.features.providers import EXTRA, build_judge_config, check_architecture
from labelguard_trainer.features.tokens import (
    DistinctTexts,
    InputTokenizer,
    TokenIds,
    find_distinct_texts,
    write_as_lines,
)

if TYPE_CHECKING:
    from pathlib import Path

    import torch

QUESTION = (
    "Which of two responses to a prompt is better?\n\nPrompt:\n{}\n\nResponse A:\n{}\n\n"
    "Response B:\n{}\n\nSay A or B, and nothing else.\n\nThe better response is"
)
_HEADS = ("ForCausalLM", "LMHeadModel")
_PARTS = 3  # a prompt and two responses share the room for tokens


def verdict(options: str, state: State | None) -> FeatureProvider:
    """Return the provider `verdict:NAME` or `verdict:model=ID_OR_PATH`; d = 1.

    Options of a model: `template=chat|lines` (default: chat if the tokenizer has a template),
    `max_tokens=N`, `dtype=float32|bfloat16`. Code that comes with a model is never run, and weights
    are read from safetensors only. Raises `LabelguardError` for one that writes no text.
    """
    if not is_verdict_of_model(options):
        if not options.strip():
            raise LabelguardError("expected verdict:NAME or verdict:model=ID_OR_PATH")
        return columns.columns(options, state)
    extras.require_extra(EXTRA, "features verdict:model")
    question = hashlib.sha256(QUESTION.encode()).hexdigest()[:16]
    return ModelVerdict(
        build_judge_config(
            f"verdict {question}", "verdict:model", options.partition("=")[2], _check_language_model
        )
    )


def _check_language_model(directory: Path) -> None:
    check_architecture(directory, _HEADS, "is no language model: expected one")


class ModelVerdict(FrozenJudge):
    """The verdict of a language model on (prompt, first, second), cached; nothing is learnt."""

    _model_class = "AutoModelForCausalLM"

    def __call__(self, pairs: pa.Table) -> Features:
        """Return the mean log-odds of the first side in both orders, shape (n, 1), float32."""
        return np.asarray(super().__call__(pairs) / 2, np.float32)

    def names(self) -> tuple[str, ...]:
        """`verdict`."""
        return ("verdict",)

    def _list_distinct_texts(self, pairs: pa.Table) -> DistinctTexts:
        prompt, one, other = (
            write_as_lines(content_column(pairs, name)) for name in ("prompt", "first", "second")
        )
        orders = {"first": (one, other), "second": (other, one)}
        shown = {side: _make_chat_rows([prompt, *responses]) for side, responses in orders.items()}
        return find_distinct_texts(pa.table({"prompt": _make_chat_rows([prompt]), **shown}))

    @cached_property
    def _input_tokenizer(self) -> QuestionTokenizer:
        return QuestionTokenizer(
            self._load_tokenizer(), self.config.max_tokens, self.config.template
        )

    def _compute_vectors(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Log-odds of A over B as the next token, (b, t), (b, t) → (b, 1)."""
        inputs = {"input_ids": ids, "attention_mask": mask.long()}
        hidden = self._model.base_model(**inputs).last_hidden_state
        last = hidden[range(len(hidden)), mask.sum(dim=1) - 1]
        logits = self._model.get_output_embeddings()(last).float()
        a, b = (
            logits[:, tokens].logsumexp(dim=1) for tokens in self._input_tokenizer.answer_tokens
        )
        odds: torch.Tensor = (a - b)[:, None]
        return odds


class QuestionTokenizer(InputTokenizer):
    """Turns chats of a prompt and two responses into the question, of at most `max_tokens`.

    Each of the three has a third of the room; of a longer one the beginning stays.
    """

    @cached_property
    def answer_tokens(self) -> tuple[list[int], list[int]]:
        """The tokens with which A and B may begin; `LabelguardError` if they are the same."""
        a, b = (sorted({ids[-1] for ids in self._tokenize([name, f" {name}"])}) for name in "AB")
        if not set(a).isdisjoint(b):
            raise LabelguardError("the tokenizer writes A and B alike: ask another model")
        return a, b

    def __call__(self, prompts: pa.Array, responses: pa.Array) -> list[TokenIds]:
        """Return one question each; all of it is in `responses`."""
        room = max((self._max_tokens - len(self._tokenize_question("", "", ""))) // _PARTS, 1)
        contents = ([part["content"] for part in chat] for chat in responses.to_pylist())
        return [
            self._tokenize_question(*(self._cut(text, room) for text in texts))
            for texts in contents
        ]

    def _tokenize_question(self, *texts: str) -> TokenIds:
        question = QUESTION.format(*texts)
        if self._template == "chat":
            chat = [{"role": "user", "content": question}]
            options = {"tokenize": False, "add_generation_prompt": True}
            return self._tokenize([self._tokenizer.apply_chat_template(chat, **options)])[0]
        return [*self._before, *self._tokenize([question])[0]]

    def _cut(self, text: str, room: int) -> str:
        [ids] = self._tokenize([text])
        return text if len(ids) <= room else str(self._tokenizer.decode(ids[:room]))


def _make_chat_rows(texts: list[pa.Array]) -> pa.Array:
    """Return a chat a row, with a message for each of its texts."""
    rows, parts = len(texts[0]), len(texts)
    inside = np.arange(rows * parts)
    contents = pa.concat_arrays(texts).take(pa.array(inside % parts * rows + inside // parts))
    roles = pa.repeat(pa.scalar("", pa.large_string()), rows * parts)
    messages = pa.StructArray.from_arrays([roles, contents], names=["role", "content"])
    return pa.LargeListArray.from_arrays(
        pa.array(np.arange(rows + 1) * parts, pa.int64()), messages
    )
