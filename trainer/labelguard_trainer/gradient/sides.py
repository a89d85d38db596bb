"""Both sides of pairs as padded batches of token ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["Padded", "Sides"]

Indices: TypeAlias = NDArray[np.intp]


class Padded(NamedTuple):
    """2k texts, the k first sides and then the second ones: each of shape (2k, longest)."""

    ids: NDArray[np.int64]
    real: NDArray[np.bool_]
    """what is no padding"""
    response: NDArray[np.bool_]
    """what belongs to the response; where prompts were not told apart, all that is real"""


@dataclass(frozen=True, eq=False, repr=False)
class Sides:
    """The token ids of n pairs, as `pair_tokens.tokenized` makes them, cut at `limit` tokens."""

    tokens: pa.Table
    limit: int | None
    padding: int
    """the id that pads"""

    @cached_property
    def lengths(self) -> Indices:
        """Tokens of both sides, shape (n, 2)."""
        prompt, *responses = self._spans
        whole = np.stack([prompt.lengths + side.lengths for side in responses], axis=1)
        return whole if self.limit is None else np.minimum(whole, self.limit)

    def padded(self, pairs: Indices) -> Padded:
        """Texts of k pairs by their numbers, padded on the right to the longest of them."""
        prompt, *responses = self._spans
        lengths = self.lengths[pairs].T.reshape(-1, 1)
        place = np.arange(max(int(lengths.max()), 1))
        asked = np.tile(prompt.lengths[pairs], 2)[:, None]
        begins = np.tile(prompt.starts[pairs], 2)[:, None]
        answers = np.concatenate([side.starts[pairs] for side in responses])[:, None]
        response = place >= asked
        real = place < lengths
        source = np.where(response, answers + place - asked, begins + place)
        ids = np.where(real, self._ids[np.where(real, source, 0)], self.padding)
        return Padded(ids, real, real & response)

    @cached_property
    def _columns(self) -> list[Any]:
        names = ("prompt_ids", "chosen_ids", "rejected_ids")
        return [self.tokens[n].combine_chunks() for n in names if n in self.tokens.column_names]

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        """The tokens of all columns, one after another."""
        return np.concatenate([column.values.to_numpy() for column in self._columns])

    @cached_property
    def _spans(self) -> list[_Span]:
        """Of prompts, first and second sides: where they lie in `_ids`."""
        spans, before = [], 0
        for column in self._columns:
            offsets = column.offsets.to_numpy().astype(np.intp) + before
            spans.append(_Span(offsets[:-1], np.diff(offsets)))
            before += len(column.values)
        nothing = _Span(*(np.zeros(len(self.tokens), np.intp),) * 2)
        return spans if len(spans) == 3 else [nothing, *spans]


class _Span(NamedTuple):
    starts: Indices
    lengths: Indices
