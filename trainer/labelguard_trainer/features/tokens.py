"""Inputs of an encoder: the distinct (prompt, response) of pairs, as token ids.

Prompt, line break and response are one input (without a prompt, the response alone). Sentence
encoders read 256 to 512 tokens, so the *prompt* is cut from the left until the response fits; a
response that is longer by itself keeps its beginning. Prompt and response are split into tokens
separately, which makes no difference to words but may split a word that runs across the border.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.learning.columns import content_column, join_messages
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokenIds = list[int]


@dataclass(frozen=True)
class DistinctTexts:
    """The distinct (prompt, response) of pairs, m of them, and where each side is found.

    `prompts` and `responses` have length m; `first` and `second`, shape (n,), index them.
    """

    prompts: pa.Array
    responses: pa.Array
    keys: Blocks
    first: NDArray[np.intp]
    second: NDArray[np.intp]


def find_distinct_texts(pairs: pa.Table) -> DistinctTexts:
    """Return the distinct (prompt, response) of both sides, in an order that costs no sorting of
    texts.
    """
    prompt = content_column(pairs, "prompt")
    response = pa.concat_arrays([content_column(pairs, side) for side in ("first", "second")])
    prompt_names = _write_with_lengths(prompt).dictionary_encode()
    response_names = _write_with_lengths(response).dictionary_encode()
    code = np.tile(prompt_names.indices.to_numpy().astype(np.int64), 2)
    code *= max(len(response_names.dictionary), 1)
    code += response_names.indices.to_numpy()
    _, example, number = np.unique(code, return_index=True, return_inverse=True)
    of_prompt = example % max(pairs.num_rows, 1)
    tag = "text" if pa.types.is_large_string(prompt.type) else "chat"
    return DistinctTexts(
        prompt.take(of_prompt),
        response.take(example),
        _hash_texts(tag, prompt_names.take(of_prompt), response_names.take(example)),
        number[: pairs.num_rows],
        number[pairs.num_rows :],
    )


class InputTokenizer:
    """Turns prompts and responses into at most `max_tokens` token ids each.

    `template` is chat (the tokenizer's own) or lines (`role: content`), and matters for chats only.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_tokens: int, template: str = "lines"
    ) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._template = template
        self.padded = tokenizer.pad_token_id is not None
        self.padding: int = tokenizer.pad_token_id or 0
        self._separator = self._tokenize(["\n"])[0]
        self._before, self._after = self._find_special_tokens()

    def __call__(self, prompts: pa.Array, responses: pa.Array) -> list[TokenIds]:
        """Return one input each, of at least one token; the columns are as in `DistinctTexts`.

        Raises `LabelguardError` if a chat template is asked for and the tokenizer has none.
        """
        if self._template == "chat" and not pa.types.is_large_string(prompts.type):
            return self._join_and_cut(*self._render_chats(prompts, responses), [], [], [])
        heads, tails = write_as_lines(prompts), write_as_lines(responses)
        return self._join_and_cut(heads, tails, self._before, self._separator, self._after)

    def _join_and_cut(
        self, heads: pa.Array, tails: pa.Array, before: TokenIds, between: TokenIds, after: TokenIds
    ) -> list[TokenIds]:
        room = max(self._max_tokens - len(before) - len(between) - len(after), 1)
        return [
            [
                *before,
                *_last(head, room - len(tail)),
                *(between if head else []),
                *tail[:room],
                *after,
            ]
            or [self.padding]
            for head, tail in zip(
                self._tokenize_distinct(heads), self._tokenize_distinct(tails), strict=True
            )
        ]

    def _tokenize_distinct(self, texts: pa.Array) -> Iterator[TokenIds]:
        """Token ids without special tokens; each distinct text is split once."""
        coded = texts.dictionary_encode()
        ids = self._tokenize(coded.dictionary.to_pylist())
        return (ids[code] for code in coded.indices.to_pylist())

    def _tokenize(self, texts: list[str]) -> list[TokenIds]:
        ids: list[TokenIds] = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    def _find_special_tokens(self) -> tuple[TokenIds, TokenIds]:
        """Return the special tokens before and after a text."""
        [plain], whole = self._tokenize(["a"]), self._tokenizer("a")["input_ids"]
        starts = range(len(whole) - len(plain) + 1)
        at = next(start for start in starts if whole[start : start + len(plain)] == plain)
        return whole[:at], whole[at + len(plain) :]

    def _render_chats(self, prompts: pa.Array, responses: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Chats in the tokenizer's template: what the prompt alone gives, and the rest."""
        if not self._tokenizer.chat_template:
            raise LabelguardError("the tokenizer has no chat template; leave out template=chat")
        heads, tails = [], []
        for prompt, response in zip(prompts.to_pylist(), responses.to_pylist(), strict=True):
            whole = self._tokenizer.apply_chat_template([*prompt, *response], tokenize=False)
            alone = self._tokenizer.apply_chat_template(
                prompt, tokenize=False, add_generation_prompt=True
            )
            shared = len(os.path.commonprefix([whole, alone]))  # noqa: RUF071 (characters, no paths)
            heads.append(whole[:shared])
            tails.append(whole[shared:])
        return pa.array(heads, pa.large_string()), pa.array(tails, pa.large_string())


def _hash_texts(tag: str, prompts: pa.Array, responses: pa.Array) -> Blocks:
    """16 bytes of SHA-256 of each (prompt, response), shape (m, 2)."""
    digests = [
        hashlib.sha256(f"{tag} {len(prompt)}:{prompt}{response}".encode()).digest()
        for prompt, response in zip(prompts.to_pylist(), responses.to_pylist(), strict=True)
    ]
    return blocks.from_bytes(b"".join(digests), stride=32)


def write_as_lines(column: pa.Array) -> pa.Array:
    """Return texts as they are, chats as lines `role: content`."""
    if pa.types.is_large_string(column.type):
        return column
    role, content = (pc.struct_field(column.flatten(), name) for name in ("role", "content"))
    return join_messages(
        column, pc.binary_join_element_wise(role, content, _to_large_string(": ")), "\n"
    )


def _write_with_lengths(column: pa.Array) -> pa.Array:
    """Like `write_as_lines`, but different chats give different texts: lengths come first."""
    if pa.types.is_large_string(column.type):
        return column
    parts = []
    for name in ("role", "content"):
        values = pc.struct_field(column.flatten(), name)
        parts += [pc.utf8_length(values).cast(pa.large_string()), values]
    return join_messages(column, pc.binary_join_element_wise(*parts, _to_large_string(":")), "")


def _last(ids: list[int], count: int) -> list[int]:
    return ids[-count:] if count > 0 else []


def _to_large_string(text: str) -> pa.Scalar:
    """Arrow joins columns of large_string by a large_string only."""
    return pa.scalar(text, pa.large_string())
