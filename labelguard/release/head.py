"""A released head: the linear teacher, how its features are computed, and the statistic behind it.

`head.npz` in a release holds arrays only (no pickle). The noisy statistic is in it, so that other
ridges can be fitted from the same release at no further price.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import LabelguardError, PolicyError, ProjectError
from labelguard.learning.features import PairFeatures, open_provider
from labelguard.learning.heads import fit_statistic
from labelguard.ledger.records import ReleaseRecord
from labelguard.mechanisms.geometry import Basis, Shape
from labelguard.mechanisms.noise import NoiseKind
from labelguard.mechanisms.statistic import compute_noise_aware_ridge
from labelguard.storage import portions
from labelguard.storage.executor import Workers
from labelguard.text import Progress

_STATE = "features/"


class _FeaturesChanged(LabelguardError):
    """Features are computed otherwise than those of the coordinates."""


@dataclass(frozen=True)
class Coordinates:
    """z = φ(pair) · projection. `features` names φ, `identity` and `state` fix it.

    Heads, statistics and evaluations add up, or can be compared, in one set of coordinates only.
    """

    features: str
    identity: str
    state: Mapping[str, NDArray[Any]]
    shape: Shape
    basis: Basis

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return named arrays for a file; `from_arrays` is the inverse."""
        about = {"features": self.features, "identity": self.identity, "shape": asdict(self.shape)}
        return {
            "about": np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8),
            "projection": self.basis.projection,
            "metric": self.basis.metric,
            **{_STATE + name: values for name, values in self.state.items()},
        }

    @classmethod
    def from_arrays(cls, named: Mapping[str, NDArray[Any]]) -> Coordinates:
        """Invert `arrays`; raises `KeyError`, `TypeError` or `ValueError` otherwise."""
        about = json.loads(bytes(named["about"]))
        state = {
            name.removeprefix(_STATE): values
            for name, values in named.items()
            if name.startswith(_STATE)
        }
        shape, basis = Shape(**about["shape"]), Basis(named["projection"], named["metric"])
        projection, metric = basis.projection, basis.metric
        if projection.ndim != 2 or metric.shape != projection.shape[1:]:
            raise ValueError("the metric has another number of components than the projection")
        if projection.shape[1] > projection.shape[0]:
            raise ValueError("there are more components than features")
        if not (np.isfinite(metric) & (metric > 0)).all():
            raise ValueError("the metric is not of finite numbers above 0")
        if not (np.abs(projection) < np.finfo(np.float32).max).all():
            raise ValueError("the projection is not of finite numbers in single precision")
        return cls(about["features"], about["identity"], state, shape, basis)

    def digest(self) -> str:
        """Return the SHA-256 of all of them, in hexadecimal digits."""
        return hashlib.sha256(portions.pack_arrays(self.arrays())).hexdigest()

    def load_provider(self, progress: Progress, workers: Workers | None = None) -> PairFeatures:
        """Return the features, as they were; `LabelguardError` if they are computed differently."""
        provider = open_provider(self.features, self.state)
        provider.set_progress(progress, workers)
        if provider.identity() != self.identity:
            raise _FeaturesChanged(
                f"the features {self.features} are no longer those of these coordinates "
                f"({self.identity}); found {provider.identity()}"
            )
        return provider

    def load_provider_to_join(self, progress: Progress, workers: Workers) -> PairFeatures:
        """Return the features for a window that joins the sum in these coordinates.

        Raises `PolicyError` if they are computed differently.
        """
        try:
            return self.load_provider(progress, workers)
        except _FeaturesChanged as error:
            raise PolicyError(
                f"{error}; restore what they were, or begin anew with --again"
            ) from None

    def convert_to_components(self, identity: str, coefficients: Floats) -> Floats:
        """Return θ with z·θ = φ·coefficients, shape (components,), for a head on `identity`.

        Raises `LabelguardError` for other features, or coefficients that leave these axes.
        """
        projection = self.basis.projection
        if not np.isfinite(coefficients).all():
            raise LabelguardError("this head has coefficients that are no finite numbers")
        if identity != self.identity or len(coefficients) != len(projection):
            raise LabelguardError(
                f"this head has other features ({identity}) than the evaluation "
                f"({self.identity}): heads are judged in one set of coordinates only"
            )
        theta = np.asarray(np.linalg.lstsq(projection, coefficients, rcond=None)[0], np.float64)
        if np.linalg.norm(projection @ theta - coefficients) > 1e-6 * np.linalg.norm(coefficients):
            raise LabelguardError(
                "this head has other principal axes than the evaluation: heads are judged in one "
                "set of coordinates only; fit it in those of the head that the evaluation names"
            )
        return theta


FILE = "head.npz"
WINDOW = "window.npz"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """One noisy statistic and the public pairs it is about.

    `statistic` (components,) has noise of standard deviation `noise` in each coordinate, of a
    `kind`, in `least` dimensions or more (see `mechanisms.noise`). `z` (pairs, components) and
    `weight` (pairs,) are the pairs' coordinates and weights in the likelihood. `sampling`
    (components, components) bounds what labels beside the noise scatter by
    (see `mechanisms.statistic.bound_sampling_covariance`).

    `scale` is that of the head of the sum up to this window (see `planner.calibration`); 1 where
    nothing learns from it.
    """

    statistic: Floats
    noise: float
    z: NDArray[np.float32]
    weight: Floats
    clip: float
    sensitivity: float
    sampling: Floats | None = None
    kind: NoiseKind = "gaussian"
    least: int = 1
    scale: float = 1.0

    def save(self, path: Path) -> None:
        """Write the window as portions."""
        named: dict[str, Any] = {n: np.asarray(v) for n, v in vars(self).items() if v is not None}
        np.savez(path, **named)

    @classmethod
    def load(cls, path: Path) -> Window:
        """Invert `save`; `ProjectError` for anything else."""
        try:
            values: dict[str, Any] = dict(portions.load_arrays(path))
            for name in ("noise", "clip", "sensitivity", "scale"):
                values[name] = float(values[name])
            kind, least = str(values["kind"]), int(values["least"])
            return cls(**(values | {"kind": kind, "least": least}))
        except (OSError, ValueError, KeyError, TypeError):
            raise ProjectError(f"{path} is damaged; restore it from a backup") from None


@dataclass(frozen=True)
class Head(Coordinates):
    """A linear scorer of pairs in its coordinates; `coefficients` (d,) apply to raw features.

    `statistic` is the noisy statistic it was fitted from, if it was, with its `noise`. `scale` is
    what the fitted coefficients were multiplied by, so that probabilities mean what they say (see
    `planner.calibration`): those here hold it already.
    """

    coefficients: Floats
    statistic: Floats | None = None
    noise: float = math.nan
    scale: float = 1.0

    def predict_log_odds(self, x: NDArray[np.float32]) -> Floats:
        """Return log-odds that the first side of each pair is preferred, shape (pairs,)."""
        return (x @ self.coefficients.astype(np.float32)).astype(np.float64)

    def predict_probability(self, x: NDArray[np.float32]) -> Floats:
        """Return the probability that the first side of each pair is preferred, shape (pairs,)."""
        return np.asarray(0.5 * (1 + np.tanh(self.predict_log_odds(x) / 2)))

    def to_bytes(self) -> bytes:
        """Return the file that `load` reads."""
        return portions.pack_arrays(
            {
                **self.arrays(),
                "coefficients": self.coefficients,
                "statistic": np.zeros(0) if self.statistic is None else self.statistic,
                "noise": np.array(self.noise),
                "scale": np.array(self.scale),
            }
        )

    @classmethod
    def load(cls, release: Path) -> Head:
        """Return the head of a release directory; `ProjectError` if it holds none."""
        try:
            named = portions.load_arrays(release / FILE)
            coordinates = Coordinates.from_arrays(named)
            columns, components = coordinates.basis.projection.shape
            scale = float(check_numbers(named["scale"], ()))
            if not scale > 0:
                raise ValueError("the scale is not above 0")
            statistic = named["statistic"]
            return cls(
                **vars(coordinates),
                coefficients=check_numbers(named["coefficients"], (columns,)),
                statistic=check_numbers(statistic, (components,)) if statistic.size else None,
                noise=float(named["noise"]),
                scale=scale,
            )
        except FileNotFoundError:
            raise ProjectError(
                f"{release} holds no head; heads come with --mechanism statistic and props"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise ProjectError(f"{release / FILE} is damaged; restore it from a backup") from None


def check_numbers(values: NDArray[Any], shape: tuple[int, ...]) -> Floats:
    """Return an array of finite numbers of this shape; `TypeError` or `ValueError` otherwise."""
    if values.dtype.kind != "f" or values.shape != shape:
        raise ValueError(f"expected numbers of shape {shape}, found {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("a number is not finite")
    return np.asarray(values, np.float64)


def fit(windows: Sequence[Window], basis: Basis, shape: Shape) -> tuple[Floats, Floats, float]:
    """Return the coefficients on raw features, the summed statistic and its noise.

    Not yet multiplied by any scale. Post-processing of released statistics: nothing is charged.
    """
    total = np.sum([window.statistic for window in windows], axis=0)
    noise = float(np.sqrt(np.sum([window.noise**2 for window in windows])))
    try:
        beta = _fit_pairs(windows, total, shape.ridge * basis.metric**2, noise)
    except (ValueError, ArithmeticError) as error:
        raise LabelguardError(f"the head cannot be fitted ({error}); take another ridge") from None
    return basis.projection @ beta, total, noise


def _fit_pairs(windows: Sequence[Window], total: Floats, penalty: Floats, noise: float) -> Floats:
    """Fit logistic regression on comparisons, shape (components,)."""
    z, weight = windows[0].z, windows[0].weight
    if len(windows) > 1:  # z may be large
        z = np.concatenate([window.z for window in windows])
        weight = np.concatenate([window.weight for window in windows])
    return fit_statistic(z, weight, total, compute_noise_aware_ridge(z, weight, penalty, noise))


def load_windows_of_sum(
    released: Path, first: str, records: Iterable[ReleaseRecord]
) -> Iterator[Window]:
    """Yield the windows of the sum that the release `first` began, in the order of `records`.

    Raises `ProjectError` for one that is missing.
    """
    for record in records:
        if first not in (record.id, record.settings["parameters"].get("first")):
            continue
        path = released / record.id / WINDOW
        if path.exists():
            yield Window.load(path)
        elif record.drawn:
            raise ProjectError(f"{path} is missing; restore it from a backup")
