"""Pairs as token ids, in large batches and once: as TRL's trainers would make them of each row.

A text ends with the end-of-sequence token; a chat is written by the tokenizer's template.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any, TypeAlias

import pyarrow as pa

from labelguard.learning.content import content_column
from labelguard_trainer.training.settings import Kind

__all__ = ["is_chat", "tokenized"]

TokenIds: TypeAlias = list[int]

_BATCH = 1 << 10
_IDS = pa.list_(pa.int64())  # a response may be empty, and its type must still be known
_SCHEMAS = {
    "dpo": pa.schema([("prompt_ids", _IDS), ("chosen_ids", _IDS), ("rejected_ids", _IDS)]),
    "reward": pa.schema([("chosen_ids", _IDS), ("rejected_ids", _IDS)]),
}


def is_chat(pairs: pa.Table) -> bool:
    """Whether the prompts and responses of `pairs` are chats, and not texts."""
    return not pa.types.is_large_string(content_column(pairs, "prompt").type)


def tokenized(kind: Kind, pairs: pa.Table, tokenizer: Any, limit: int | None = None) -> pa.Table:
    """Token ids of pairs with columns prompt, first and second, in their order.

    For `dpo` prompt_ids, chosen_ids and rejected_ids: the prompt ends where either side parts from
    it, and batches are cut when they are made. For `reward` chosen_ids and rejected_ids, prompt
    included, and cut at `limit` here: TRL would leave longer rows out. `chosen` is the first side.
    """
    columns = [content_column(pairs, name) for name in ("prompt", "first", "second")]
    tables = []
    for at in range(0, pairs.num_rows, _BATCH):
        prompt, first, second = (column.slice(at, _BATCH) for column in columns)
        if kind == "dpo":
            rows = _split(tokenizer, prompt, first, second)
        else:
            rows = _whole(tokenizer, prompt, first, second, limit)
        tables.append(pa.Table.from_pylist(list(rows), _SCHEMAS[kind]))
    return pa.concat_tables(tables)


def _split(
    tokenizer: Any, prompt: pa.Array, first: pa.Array, second: pa.Array
) -> Iterator[dict[str, TokenIds]]:
    prompts = _token_ids(tokenizer, prompt.to_pylist(), add_generation_prompt=True)
    sides = (_sides(tokenizer, prompt, side) for side in (first, second))
    for alone, chosen, rejected in zip(prompts, *sides, strict=True):
        border = sum(1 for _ in takewhile(_alike, zip(alone, chosen, rejected, strict=False)))
        yield {
            "prompt_ids": chosen[:border],
            "chosen_ids": chosen[border:],
            "rejected_ids": rejected[border:],
        }


def _whole(
    tokenizer: Any, prompt: pa.Array, first: pa.Array, second: pa.Array, limit: int | None
) -> Iterator[dict[str, TokenIds]]:
    sides = (_sides(tokenizer, prompt, side) for side in (first, second))
    for chosen, rejected in zip(*sides, strict=True):
        yield {"chosen_ids": chosen[:limit], "rejected_ids": rejected[:limit]}


def _sides(tokenizer: Any, prompt: pa.Array, response: pa.Array) -> list[TokenIds]:
    together = zip(prompt.to_pylist(), response.to_pylist(), strict=True)
    if not pa.types.is_large_string(prompt.type):
        return _token_ids(tokenizer, [question + answer for question, answer in together])
    end = tokenizer.eos_token or ""
    texts = [question + answer.removesuffix(end) + end for question, answer in together]
    return _token_ids(tokenizer, texts)


def _token_ids(tokenizer: Any, contents: list[Any], **template: Any) -> list[TokenIds]:
    if isinstance(contents[0], str):
        ids: list[TokenIds] = tokenizer(contents)["input_ids"]
        return ids
    written = tokenizer.apply_chat_template(
        contents, tokenize=True, return_dict=True, padding=False, **template
    )
    chats: list[TokenIds] = written["input_ids"]
    return chats


def _alike(tokens: tuple[int, int, int]) -> bool:
    return tokens[0] == tokens[1] == tokens[2]
