"""What a run on a linear head is fixed by: coordinates, weights, clip and rates, all public."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.ingest.pairs import DistinctPairs
from labelguard.learning.features import PairFeatures
from labelguard.mechanisms.geometry import Basis, Shape, basis, spectrum
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.components import Directions
from labelguard.release.featured import Featured
from labelguard.release.head import Head
from labelguard.release.methods.further import with_head
from labelguard.release.protocol import Finished, Job
from labelguard.terms import Progress, silent
from labelguard_trainer.gradient import head_records, heads
from labelguard_trainer.gradient.calibrating import probability_scale
from labelguard_trainer.gradient.course import Course
from labelguard_trainer.gradient.head_records import Comparisons, Records
from labelguard_trainer.gradient.heads import HeadProblem
from labelguard_trainer.gradient.options import Weighting

__all__ = ["HeadRun", "head_run", "mean_noise"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadRun:
    """A `LearnerRun` of a linear head."""

    features: str
    provider: PairFeatures
    shape: Shape
    basis: Basis
    z: NDArray[np.float32]
    records: Records
    weight: Floats
    clip: float
    rate: Floats
    scale: float

    @property
    def parameters(self) -> dict[str, Any]:
        """Features and shape."""
        return {"identity": self.provider.identity(), "shape": asdict(self.shape)}

    @property
    def told(self) -> dict[str, Any]:
        """Features, and how many coefficients."""
        return {
            "features": self.features,
            "features_identity": self.provider.identity(),
            "parameters": self.z.shape[1],
            "noise_drawn": "exactly, on a grid",
            "probability_scale": self.scale,
        }

    def problem(self) -> HeadProblem:
        """A head at 0."""
        return HeadProblem(self.z, self.records, self.weight, self.rate, self.clip)

    def margins(self, problem: HeadProblem) -> Floats:
        """Log-odds that the first side is preferred, for every pair, (pairs,)."""
        return self.scale * problem.margins()

    def released(
        self, job: Job, problem: HeadProblem, pairs: DistinctPairs, finished: Finished
    ) -> Finished:
        """With `head.npz`, which scores other pairs too."""
        head = Head(
            self.features,
            self.provider.identity(),
            self.provider.state(),
            self.shape,
            self.basis,
            self.scale * self.basis.projection @ problem.theta,
            scale=self.scale,
        )
        return with_head(finished, job, head, self.provider, pairs)


def mean_noise(price: Mapping[str, Any], units: int) -> float:
    """The deviation of the mean of all steps' noise on a mean gradient, in clip norms."""
    q, steps = float(price["sampling_probability"]), int(price["steps"])
    return float(price["noise_multiplier"]) / (q * units * math.sqrt(steps))


def head_run(
    seen: Featured,
    rows: Rows,
    price: Mapping[str, Any],
    weighting: Weighting,
    given: Mapping[str, Any],
    agreement: float | None = None,
    progress: Progress = silent,
) -> HeadRun:
    """A head on the pairs of an input that `rows` compare; `given` are parts of its shape.

    The number of components is that of a statistic with as much noise as all steps' mean has, and
    every step goes as far as a ridge would (`heads.rates`): closed forms, nothing is tuned. Where
    labelers are taken to agree as often as `agreement`, probabilities are scaled by what simulated
    worlds say (`calibrating`); of rankings and choices they are left as they are.
    """
    x, units = seen.x, len(np.unique(rows.unit))
    # Noise of a statistic is counted in sensitivities, which are two clip norms.
    noise = Noise("gaussian", mean_noise(price, units) * units / 2)
    shape = replace(Directions.of_features(x, rows).shape(lambda _: noise), **given)
    axes = basis(spectrum(x, np.bincount(rows.pair, minlength=len(x))), shape)
    z = axes.coordinates(x)
    found = head_records.of_pairs(z, rows, seen.pairs)
    weight = head_records.weights(found, weighting)
    clip = heads.clip_norm(found, weight)
    penalty = shape.ridge * axes.metric**2
    spread, steps = mean_noise(price, units) * clip, int(price["steps"])
    rate = heads.rates(found, weight, penalty, spread, steps)
    scale = 1.0
    if agreement is not None and isinstance(found, Comparisons):
        course = Course.priced(price, clip, units)
        scale = probability_scale(x, z, rows, weight, rate, course, agreement, progress)
    return HeadRun(seen.spec, seen.provider, shape, axes, z, found, weight, clip, rate, scale)
