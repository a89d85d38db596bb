"""The records of a labeler in a step, their weights, and the texts of their pairs.

A labeler of m > G records shows G of them a step, in turn: at step t those in the places tG, …,
tG + G − 1 (mod m) of their public order. Cohorts are drawn independently of the step, so over a run
all records are seen equally often, and a step that is computed again looks at the same ones. All of
it is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard_trainer.gradient.options import Weighting

Indices: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True)
class StepRecords:
    """k records of a step, labeler by labeler: each of shape (k,)."""

    # their places in the records' arrays
    rows: Indices
    # whose they are: places in the cohort, ascending
    owners: Indices
    # what their gradients weigh in their labeler's vector
    weights: NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """n records, in an order that does not depend on labels: `pairs` and `units`, shape (n,).

    `pairs` number the distinct pairs, `units` the labelers, of which there are `population`; at
    most `limit` records of a labeler are used a step (aup-rlhf Alg. 4, line 7).
    """

    pairs: Indices
    units: Indices
    population: int
    limit: int
    weighting: Weighting
    # which records are there, (n,): null ones add nothing; None: all of them
    present: NDArray[np.bool_] | None = None

    def select(self, step: int, cohort: Indices) -> StepRecords:
        """Return the records of `cohort`, distinct labelers, at a step counted from 0."""
        counts = self._counts[cohort]
        used = np.minimum(counts, self.limit)
        owners = np.repeat(np.arange(len(cohort)), used)
        place = np.arange(len(owners)) - np.repeat(np.cumsum(used) - used, used)
        turn = (step * self.limit + place) % counts[owners]
        rows = self._order[self._starts[cohort][owners] + turn]
        power = 1.0 if self.weighting == "mean" else 0.5
        weights = (1.0 / used[owners]) ** power
        return StepRecords(
            rows, owners, weights if self.present is None else weights * self.present[rows]
        )

    @cached_property
    def _counts(self) -> Indices:
        return np.bincount(self.units, minlength=self.population)

    @cached_property
    def _order(self) -> Indices:
        return np.argsort(self.units, kind="stable")

    @cached_property
    def _starts(self) -> Indices:
        return np.cumsum(self._counts) - self._counts


class PaddedTexts(NamedTuple):
    """2k texts, the k first sides and then the second ones: each of shape (2k, longest)."""

    ids: NDArray[np.int64]
    # what is no padding
    real: NDArray[np.bool_]
    # what belongs to the response; where prompts were not told apart, all that is real
    response: NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class Sides:
    """The token ids of n pairs, as `stage_training.tokenize` makes them, cut at `limit` tokens."""

    tokens: pa.Table
    limit: int | None
    # the id that pads
    padding: int

    @cached_property
    def token_counts(self) -> Indices:
        """Tokens of both sides, shape (n, 2)."""
        prompt, *responses = self._spans
        whole = np.stack([prompt.lengths + side.lengths for side in responses], axis=1)
        return whole if self.limit is None else np.minimum(whole, self.limit)

    def pad(self, pairs: Indices) -> PaddedTexts:
        """Texts of k pairs by their numbers, padded on the right to the longest of them."""
        prompt, *responses = self._spans
        lengths = self.token_counts[pairs].T.reshape(-1, 1)
        place = np.arange(max(int(lengths.max()), 1))
        prompt_lengths = np.tile(prompt.lengths[pairs], 2)[:, None]
        begins = np.tile(prompt.starts[pairs], 2)[:, None]
        answers = np.concatenate([side.starts[pairs] for side in responses])[:, None]
        response = place >= prompt_lengths
        real = place < lengths
        source = np.where(response, answers + place - prompt_lengths, begins + place)
        ids = np.where(real, self._ids[np.where(real, source, 0)], self.padding)
        return PaddedTexts(ids, real, real & response)

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
