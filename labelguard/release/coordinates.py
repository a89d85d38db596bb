"""The coordinates of heads: which public features of a pair, along which axes, in which metric.

Heads, statistics and evaluations add up, or can be compared, in one set of coordinates only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.learning.features import PairFeatures, open_provider
from labelguard.mechanisms.geometry import Basis, Shape
from labelguard.storage import arrays
from labelguard.terms import Progress

_STATE = "features/"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Coordinates:
    """z = φ(pair) · projection. `features` names φ, `identity` and `state` fix it."""

    features: str
    identity: str
    state: Mapping[str, NDArray[Any]]
    shape: Shape
    basis: Basis

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As arrays with names, for a file; `of_arrays` is the inverse."""
        about = {"features": self.features, "identity": self.identity, "shape": asdict(self.shape)}
        return {
            "about": np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8),
            "projection": self.basis.projection,
            "metric": self.basis.metric,
            **{_STATE + name: values for name, values in self.state.items()},
        }

    @classmethod
    def of_arrays(cls, found: Mapping[str, NDArray[Any]]) -> Coordinates:
        """The inverse of `arrays`; raises `KeyError`, `TypeError` or `ValueError` otherwise."""
        about = json.loads(bytes(found["about"]))
        state = {
            name.removeprefix(_STATE): values
            for name, values in found.items()
            if name.startswith(_STATE)
        }
        shape, basis = Shape(**about["shape"]), Basis(found["projection"], found["metric"])
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
        """SHA-256 of all of them, in hexadecimal digits."""
        return hashlib.sha256(arrays.packed(self.arrays())).hexdigest()

    def provider(self, progress: Progress) -> PairFeatures:
        """The features, as they were; `LabelguardError` if what computes them is another now."""
        provider = open_provider(self.features, self.state)
        provider.report_to(progress)
        if provider.identity() != self.identity:
            raise LabelguardError(
                f"the features {self.features} are no longer those of these coordinates "
                f"({self.identity}); found {provider.identity()}"
            )
        return provider

    def along(self, identity: str, coefficients: Floats) -> Floats:
        """θ with z·θ = φ·coefficients, shape (components,), of a head on features `identity`.

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
