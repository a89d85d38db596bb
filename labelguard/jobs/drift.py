"""A simulated year of labelers whose preferences drift, and who come and go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.simulation import QUALITY_WEIGHTS, calibrate, draw_items
from labelguard.terms import DEFAULT_AGREEMENT

__all__ = ["Drift", "Exam"]

Floats = NDArray[np.float64]

_TURN = np.radians(120)
"""How far the shared weights turn in a year: what was good at its beginning hardly counts at its
end, and some of it is disliked."""
_TOWARDS = np.array([-0.5, 0.2, 0.9, 0.6, 0.5])
_DEVIATION = 0.15  # of a labeler's weights around the shared ones, as in `simulation`
_LEAVING = 0.015  # of the labelers, each week
_MEETINGS = 20_000


@dataclass(frozen=True, eq=False)
class Exam:
    """Fresh pairs of one week, and by how much labelers then prefer the first side."""

    pairs: pa.Table
    """prompt, chosen and rejected; who is in which column says nothing"""
    gap: Floats
    """utility of the first less that of the second, (n,)"""

    def expected(self, margins: Floats) -> float:
        """Share of that week's labels of these pairs that a model with these margins gets right."""
        return float(np.mean(1 / (1 + np.exp(-self.gap * np.sign(margins)))))

    @property
    def best(self) -> float:
        """The share for whoever knows that week's preferences: labelers themselves disagree."""
        return self.expected(self.gap)


class Drift:
    """`labelers` give `per_week` labels each, every week, on `items` pairs that are new each week.

    The utility of a response is linear in its qualities, with shared weights that turn by 120
    degrees over `weeks`, and a labeler's own deviation. The same seed, the same year.
    """

    def __init__(self, weeks: int, labelers: int, per_week: int, items: int, seed: int = 0) -> None:
        self._weeks, self._labelers = weeks, labelers
        self._per_week, self._items = per_week, items
        self._rng = np.random.default_rng(seed)
        self._deviations = np.zeros((0, len(QUALITY_WEIGHTS)))
        self._active: list[int] = []
        self.joined = 0

    def weights(self, week: int) -> Floats:
        """What labelers share in a week, from 0 on: (qualities,)."""
        angle = _TURN * week / max(self._weeks - 1, 1)
        return np.asarray(
            self._scale * (np.cos(angle) * self._from + np.sin(angle) * self._towards)
        )

    def turnover(self) -> list[str]:
        """A few labelers leave, and as many join; the ids of those who left."""
        staying = self._rng.random(len(self._active)) >= _LEAVING
        gone = [who for who, stays in zip(self._active, staying, strict=True) if not stays]
        self._active = [who for who, stays in zip(self._active, staying, strict=True) if stays]
        new = self._labelers - len(self._active)
        self._active += range(self.joined, self.joined + new)
        self.joined += new
        deviations = _DEVIATION * self._rng.standard_normal((new, len(QUALITY_WEIGHTS)))
        self._deviations = np.concatenate([self._deviations, deviations])
        return [_name(who) for who in gone]

    def labels(self, week: int) -> pl.DataFrame:
        """A week's labels: labeler_id, prompt, response_a, response_b, label."""
        texts, contrast = draw_items(self._items, self._rng)
        who = np.repeat(self._active, self._per_week)
        item = np.concatenate(
            [self._rng.choice(self._items, self._per_week, replace=False) for _ in self._active]
        )
        own = self.weights(week) + self._scale * self._deviations[who]
        gap = np.einsum("rq,rq->r", contrast[item], own)
        label = self._rng.random(len(gap)) < 1 / (1 + np.exp(-gap))
        columns: dict[str, Any] = {"labeler_id": [_name(one) for one in who.tolist()]}
        columns |= {name: pl.Series(values).gather(item) for name, values in texts.items()}
        return pl.DataFrame(columns | {"label": label.astype(np.float64)})

    def probes(self, week: int, count: int) -> pl.DataFrame:
        """Public pairs of a week with the side that its shared weights prefer."""
        exam = self.exam(week, count)
        table = pl.from_arrow(exam.pairs)
        assert isinstance(table, pl.DataFrame)
        first = pl.Series(exam.gap > 0)
        return table.select(
            "prompt",
            chosen=pl.when(first).then("chosen").otherwise("rejected"),
            rejected=pl.when(first).then("rejected").otherwise("chosen"),
        )

    def exam(self, week: int, count: int) -> Exam:
        """Fresh pairs of a week."""
        texts, contrast = draw_items(count, self._rng)
        names = ["prompt", "chosen", "rejected"]
        return Exam(pa.table(list(texts.values()), names=names), contrast @ self.weights(week))

    @cached_property
    def _scale(self) -> float:
        """At which two labelers agree as often as in public sets."""
        rng = np.random.default_rng(0)
        _, contrast = draw_items(_MEETINGS, rng)
        deviations = _DEVIATION * rng.standard_normal((2, _MEETINGS, len(QUALITY_WEIGHTS)))
        gaps = np.einsum("nq,snq->sn", contrast, self._from + deviations)
        return calibrate(gaps, DEFAULT_AGREEMENT, 0.0)[0]

    @property
    def _from(self) -> Floats:
        return np.array(list(QUALITY_WEIGHTS.values()))

    @cached_property
    def _towards(self) -> Floats:
        """As long as the first weights, and at a right angle to them."""
        rest = _TOWARDS - (_TOWARDS @ self._from) / (self._from @ self._from) * self._from
        return np.asarray(rest * np.linalg.norm(self._from) / np.linalg.norm(rest))


def _name(labeler: int) -> str:
    return f"labeler-{labeler:04d}"
