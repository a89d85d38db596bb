"""How timid or bold a head is that noisy steps have trained, by the same run on simulated labels.

As `planner.calibration` does for statistics: clip and step size shrink a head, so that it says .60
where .70 are right, and noise does the opposite. Its coefficients are multiplied by the one number
at which fresh simulated labelers are predicted best. Nothing here has an argument that could hold
labels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelguard.mechanisms.geometry import spectrum
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.calibration import AXES, EXPLAINED, best_scale, sampled
from labelguard.planner.prior import Population, Prior
from labelguard.terms import Progress, silent
from labelguard_trainer.gradient.course import Course
from labelguard_trainer.gradient.head_records import Comparisons
from labelguard_trainer.gradient.heads import HeadProblem

__all__ = ["WORLDS", "probability_scale"]

Floats = NDArray[np.float64]

WORLDS = 9


class _Simulated(HeadProblem):
    """A head with noise that is no secret."""

    def __init__(self, *given: object, generator: np.random.Generator) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._generator = generator

    def noised(self, total: Floats, deviation: float, secret: bytes) -> Floats:
        return total + deviation * self._generator.standard_normal(len(total))


def probability_scale(
    x: NDArray[np.float32],
    z: NDArray[np.float32],
    rows: Rows,
    weight: Floats,
    rate: Floats,
    course: Course,
    agreement: float,
    progress: Progress = silent,
) -> float:
    """The scale of a run on comparisons `rows` of pairs x (pairs, d) at z (pairs, components).

    `weight` (units,) and `rate` (components,) are the run's. Of many rows those of some labelers
    are simulated, drawn at random; the noise is scaled to them. To two digits, in [0.01, 10].
    """
    mine, units, times = sampled(rows)
    counts = np.bincount(mine.pair, minlength=len(x))
    axes = spectrum(x, counts)
    size = min(AXES, axes.rank)
    principal = x @ axes.axes[:, :size].astype(np.float32)
    prior = Prior(agreement, explained=EXPLAINED)
    records = Comparisons.of(z, mine)
    worlds = []
    for number, draw in enumerate(
        Population(principal, axes.values[:size], mine, prior).draws(WORLDS)
    ):
        progress("simulating calibration", number / WORLDS)
        generator = np.random.default_rng([prior.seed, number])
        problem = _Simulated(z, records, weight[units], rate, course.clip, generator=generator)
        labels = draw.half.astype(np.float64) + 0.5
        for _ in range(course.steps):
            members = np.flatnonzero(generator.random(mine.units) < course.probability)
            total = problem.clipped_sum(members, labels, course.clip)
            noised = problem.noised(total, course.deviation / times, b"")
            problem.step(noised * times / course.divisor)
        share = counts / len(mine)
        worlds.append((problem.margins(), share * draw.gain, share * draw.strict))
    margins, gains, stricts = (np.concatenate(part) for part in zip(*worlds, strict=True))
    return round(best_scale(margins, gains, stricts), 2)
