"""A released evaluation: the noisy statistic of held-out labelers, by which heads are judged.

The log-likelihood of a head z·θ on labels y is θᵀS − Σ w log 2 cosh(z·θ/2), S = Σ w (y − ½) z: the
labels are in S alone, which was released once, with noise. So any head in the same coordinates is
judged by `evaluation.npz`, as often as one likes, at no further price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import LabelguardError, ProjectError
from labelguard.mechanisms.tails import ReleasedNoise, reach
from labelguard.release import head
from labelguard.release.coordinates import Coordinates
from labelguard.release.head import Head, Window
from labelguard.release.uncertainty import noises_of, of_noises
from labelguard.storage import arrays

FILE = "evaluation.npz"

_PUBLIC = ("z", "weight", "sampling")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """The noisy statistic of held-out labelers, and all that is public of their pairs.

    `statistic` (components,) has the sum of `noises`, one of each window; `z` (pairs, components)
    are the distinct pairs of every window in its `coordinates`, `weight` (pairs,) is what they
    weigh in the likelihood, and `sampling` (windows, components, components) bounds how far labels
    scatter (see `mechanisms.statistic.sampling_bound`).
    """

    coordinates: Coordinates
    statistic: Floats
    noises: tuple[ReleasedNoise, ...]
    z: NDArray[np.float32]
    weight: Floats
    sampling: Floats

    @classmethod
    def of(cls, coordinates: Coordinates, windows: Sequence[Window]) -> Evaluation:
        """The sum of windows, which are all of pairs."""
        sampling = [window.sampling for window in windows if window.sampling is not None]
        assert len(sampling) == len(windows) > 0
        return cls(
            coordinates,
            np.sum([window.statistic for window in windows], axis=0),
            tuple(ReleasedNoise(one.kind, one.noise, one.least) for one in windows),
            np.concatenate([window.z for window in windows]),
            np.concatenate([window.weight for window in windows]),
            np.stack(sampling),
        )

    @property
    def noise(self) -> float:
        """The standard deviation of each component's noise."""
        return math.sqrt(sum(one.deviation**2 for one in self.noises))

    @property
    def labels(self) -> float:
        """What all labels weigh together: their number, less what bounds on labelers took."""
        return float(self.weight.sum())

    def likelihood(self, judged: Head) -> float:
        """Mean log-likelihood per label under a head; unbiased, with noise.

        −log 2 is that of a head without an opinion. Raises `LabelguardError` for a head in other
        coordinates.
        """
        return self._total(self._theta(judged)) / self.labels

    def difference(self, new: Head, old: Head) -> tuple[float, float]:
        """By how much the mean log-likelihood per label is higher under `new`; its standard error.

        The standard error is at least the true one, whatever the labels are and however the labels
        of one labeler hang together: it is made of the noise and of public columns, never of the
        scatter of labels. It takes pairs and labelers as given, and labelers to answer
        independently of each other. Labels of one labeler in several windows may hang together as
        well, so that windows' standard errors are added, not their squares.

        Raises `LabelguardError` for heads in other coordinates.
        """
        one, other = self._theta(new), self._theta(old)
        error = math.hypot(
            self.noise * float(np.linalg.norm(one - other)), self._scatter(one - other)
        )
        return (self._total(one) - self._total(other)) / self.labels, error / self.labels

    def reach(self, new: Head, old: Head, confidence: float) -> float:
        """How far above the truth `difference` is with at most the probability 1 − `confidence`.

        `confidence` is in [½, 1). The noise has its own law, and what labels scatter by is taken
        for normal, of at most the variance that `difference` allows: a sum over many labelers.
        """
        d = self._theta(new) - self._theta(old)
        variance, length = self._scatter(d) ** 2, float(np.linalg.norm(d))
        return reach(1 - confidence, variance, self.noises, length, len(d)) / self.labels

    def _scatter(self, d: Floats) -> float:
        """What dᵀS scatters by at most, in standard deviations."""
        windows = np.einsum("i,wij,j->w", d, self.sampling, d)
        return float(np.sqrt(np.maximum(windows, 0)).sum())

    def _theta(self, judged: Head) -> Floats:
        return self.coordinates.along(judged.identity, judged.coefficients)

    def _total(self, theta: Floats) -> float:
        half = self.z.astype(np.float64) @ theta / 2
        return float(theta @ self.statistic - self.weight @ np.logaddexp(half, -half))

    def to_bytes(self) -> bytes:
        """The file that `load` reads."""
        own = {n: np.asarray(getattr(self, n)) for n in ("statistic", "noise", *_PUBLIC)}
        return arrays.packed({**self.coordinates.arrays(), **own, **of_noises(self.noises)})

    @classmethod
    def load(cls, release: Path) -> Evaluation:
        """The evaluation of a release directory; `ProjectError` if it holds none."""
        try:
            found = arrays.load(release / FILE)
            noises = noises_of(found) if "kinds" in found else _unknown(found)
            public = (found[name] for name in _PUBLIC)
            return cls(Coordinates.of_arrays(found), found["statistic"], noises, *public)
        except FileNotFoundError:
            raise ProjectError(
                f"{release} holds no evaluation; make one: labelguard privatize --mechanism "
                "evaluation --head RELEASE"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, LabelguardError):
            raise ProjectError(f"{release / FILE} is damaged; restore it from a backup") from None


def _unknown(found: Mapping[str, NDArray[Any]]) -> tuple[ReleasedNoise, ...]:
    """Noise of each kind at once, for files of 0.2.0, which do not say which it was."""
    deviation = float(found["noise"])
    return ReleasedNoise("gaussian", deviation), ReleasedNoise("ball", deviation)


def coordinates_in(directory: Path) -> Coordinates:
    """Those of the head, or of the evaluation, in a directory; `ProjectError` without either."""
    if not (directory / head.FILE).exists() and (directory / FILE).exists():
        return Evaluation.load(directory).coordinates
    return Head.load(directory).coordinates
