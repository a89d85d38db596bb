"""A released evaluation: the noisy statistic of held-out labelers, by which heads are judged.

The log-likelihood of a head z·θ on labels y is θᵀS − Σ w log 2 cosh(z·θ/2), S = Σ w (y − ½) z: the
labels are in S alone, which was released once, with noise. So any head in the same coordinates is
judged by `evaluation.npz`, as often as one likes, at no further price.

`--mechanism evaluation` releases it (`HeldOut`): drawn, noised and charged as that of `--mechanism
statistic`, in the coordinates of a head that exists already. A later evaluation adds the labels
that are new in it (a window). What it says is for judging alone: nothing trains on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.budget.events import STATISTIC_RELEASES
from labelguard.errors import LabelguardError, PolicyError, ProjectError
from labelguard.inputs.pairs import find_distinct_pairs
from labelguard.keys.prf import Split
from labelguard.learning.columns import parse_feature_columns
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import statistic
from labelguard.mechanisms.noise import DIMENSION_LIMIT, ReleasedNoise, bound_quantile
from labelguard.project.opening import OpenProject
from labelguard.release import head
from labelguard.release.head import WINDOW, Coordinates, Head, Window
from labelguard.release.mechanisms.options import EvaluationOptions
from labelguard.release.mechanisms.statistic import (
    build_statistic_card,
    draw_window,
    list_windows_of_sum,
)
from labelguard.release.mechanisms.statistic_design import (
    Design,
    check_has_new_labels,
    complete_design,
    find_newest_sum,
    find_priced_noise,
    find_sum_to_join,
    read_planned_comparisons,
)
from labelguard.release.protocol import Finished, Mechanism, ReleaseContext
from labelguard.release.selection import PlannedRows
from labelguard.release.writer import find_unchanged_release
from labelguard.storage import portions
from labelguard.storage.buckets import take_rows

FILE = "evaluation.npz"

_PUBLIC = ("z", "weight", "sampling")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """The noisy statistic of held-out labelers, and all that is public of their pairs.

    `statistic` (components,) has the sum of `noises`, one of each window; `z` (pairs, components)
    are the distinct pairs of every window in its `coordinates`, `weight` (pairs,) is what they
    weigh in the likelihood, and `sampling` (windows, components, components) bounds how far labels
    scatter (see `mechanisms.statistic.bound_sampling_covariance`).
    """

    coordinates: Coordinates
    statistic: Floats
    noises: tuple[ReleasedNoise, ...]
    z: NDArray[np.float32]
    weight: Floats
    sampling: Floats

    @classmethod
    def of_windows(cls, coordinates: Coordinates, windows: Sequence[Window]) -> Evaluation:
        """Return the sum of windows, which are all of pairs."""
        sampling = [window.sampling for window in windows if window.sampling is not None]
        assert len(sampling) == len(windows) > 0
        return cls(
            coordinates,
            np.sum([window.statistic for window in windows], axis=0),
            tuple(ReleasedNoise(w.kind, w.noise, w.least) for w in windows),
            np.concatenate([window.z for window in windows]),
            np.concatenate([window.weight for window in windows]),
            np.stack(sampling),
        )

    @property
    def noise(self) -> float:
        """The standard deviation of each component's noise."""
        return math.sqrt(sum(one.deviation**2 for one in self.noises))

    @property
    def label_weight(self) -> float:
        """The total weight of labels: their number, less the effect of bounds on labelers."""
        return float(self.weight.sum())

    def likelihood(self, judged: Head) -> tuple[float, float]:
        """Return the mean log-likelihood per label under a head, and its standard error.

        −log 2 is that of a head without an opinion, without any error; the standard error is that
        of the `difference` from it. Raises `LabelguardError` for a head in other coordinates.
        """
        theta = self._convert_coefficients(judged)
        return self._sum_log_likelihood(theta) / self.label_weight, self._bound_error(theta)

    def difference(self, new: Head, old: Head) -> tuple[float, float]:
        """Return the gain of `new` in mean log-likelihood per label, and its standard error.

        The standard error is at least the true one, whatever the labels are and however the labels
        of one labeler hang together: it is made of the noise and of public columns, never of the
        scatter of labels. It takes pairs and labelers as given, and labelers to answer
        independently of each other. Labels of one labeler in several windows may hang together as
        well, so that windows' standard errors are added, not their squares.

        Raises `LabelguardError` for heads in other coordinates.
        """
        after, before = self._convert_coefficients(new), self._convert_coefficients(old)
        gain = self._sum_log_likelihood(after) - self._sum_log_likelihood(before)
        return gain / self.label_weight, self._bound_error(after - before)

    def compute_error_margin(self, new: Head, old: Head, confidence: float) -> float:
        """Return the excess over the truth that `difference` has with probability 1 − `confidence`.

        `confidence` is in [½, 1). The noise has its own law, and what labels scatter by is taken
        for normal, of at most the variance that `difference` allows: a sum over many labelers.
        """
        d = self._convert_coefficients(new) - self._convert_coefficients(old)
        variance, length = self._bound_scatter(d) ** 2, float(np.linalg.norm(d))
        quantile = bound_quantile(1 - confidence, variance, self.noises, length, len(d))
        return quantile / self.label_weight

    def _bound_error(self, direction: Floats) -> float:
        """Return at least the standard error of dᵀS̃ per label, the part that labels are in."""
        noise = self.noise * float(np.linalg.norm(direction))
        return math.hypot(noise, self._bound_scatter(direction)) / self.label_weight

    def _bound_scatter(self, direction: Floats) -> float:
        """Return an upper bound of the standard deviation of dᵀS."""
        windows = np.einsum("i,wij,j->w", direction, self.sampling, direction)
        return float(np.sqrt(np.maximum(windows, 0)).sum())

    def _convert_coefficients(self, judged: Head) -> Floats:
        return self.coordinates.convert_to_components(judged.identity, judged.coefficients)

    def _sum_log_likelihood(self, theta: Floats) -> float:
        half = self.z.astype(np.float64) @ theta / 2
        return float(theta @ self.statistic - self.weight @ np.logaddexp(half, -half))

    def to_bytes(self) -> bytes:
        """Return the file that `load` reads."""
        named = {n: np.asarray(getattr(self, n)) for n in ("statistic", "noise", *_PUBLIC)}
        return portions.pack_arrays(
            {**self.coordinates.arrays(), **named, **_pack_noises(self.noises)}
        )

    @classmethod
    def load(cls, release: Path) -> Evaluation:
        """Return the evaluation of a release directory; `ProjectError` if it holds none."""
        try:
            named = portions.load_arrays(release / FILE)
            public = (named[name] for name in _PUBLIC)
            return cls(
                Coordinates.from_arrays(named), named["statistic"], _unpack_noises(named), *public
            )
        except FileNotFoundError:
            raise ProjectError(
                f"{release} holds no evaluation; make one: labelguard privatize --mechanism "
                "evaluation --head RELEASE"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, LabelguardError):
            raise ProjectError(f"{release / FILE} is damaged; restore it from a backup") from None


def _pack_noises(noises: Sequence[ReleasedNoise]) -> dict[str, NDArray[Any]]:
    """Return the noise of every window as named arrays; `_unpack_noises` is the inverse."""
    return {
        "kinds": np.array([noise.kind for noise in noises], np.str_),
        "least": np.array([noise.least for noise in noises], np.int64),
        "deviations": np.array([noise.deviation for noise in noises]),
    }


def _unpack_noises(arrays: Mapping[str, NDArray[Any]]) -> tuple[ReleasedNoise, ...]:
    """Invert `_pack_noises`; `KeyError`, `TypeError` or `ValueError` for anything else."""
    columns = [arrays[name] for name in ("kinds", "deviations", "least")]
    if any(column.ndim != 1 for column in columns) or not len(columns[0]):
        raise ValueError("noise is not listed")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    noises = tuple(ReleasedNoise(*row) for row in rows)
    for noise in noises:
        if noise.kind not in ("gaussian", "ball") or type(noise.least) is not int:
            raise ValueError("noise of a kind that is not known")
        if not (0 <= noise.deviation < np.inf and 1 <= noise.least <= DIMENSION_LIMIT):
            raise ValueError("noise of a size that cannot be")
    return noises


def load_coordinates(directory: Path) -> Coordinates:
    """Return the coordinates of a directory's head or evaluation; `ProjectError` without either."""
    if not (directory / head.FILE).exists() and (directory / FILE).exists():
        return Evaluation.load(directory).coordinates
    return Head.load(directory)


NAME = "evaluation"
VERSION = 1


class HeldOut(Mechanism[Design]):
    """The statistic of held-out labelers, in the coordinates of a head."""

    name = NAME
    version = VERSION
    priced = STATISTIC_RELEASES.name
    part: Split = "held-out"

    def __init__(self, options: EvaluationOptions, coordinates: Coordinates | None = None) -> None:
        """`coordinates` are known within a project (see `bind`)."""
        self.options, self._coordinates = options, coordinates
        self.features = parse_feature_columns(coordinates.features) if coordinates else ()

    @property
    def coordinates(self) -> Coordinates:
        """In which heads are judged."""
        assert self._coordinates
        return self._coordinates

    def bind(self, opened: OpenProject) -> HeldOut:
        """With the coordinates of the head that was named, or of the evaluation before.

        A head is known by its coordinates, not by where it lies.
        """
        head, first = self.options.head, find_newest_sum(opened.ledger, self.part)
        if head:
            directory = Path(head)
            if not directory.is_dir():  # an id, which may be shortened
                record = opened.ledger.releases.find_committed(str(head))
                directory = find_unchanged_release(opened.project, record)
        elif first:
            directory = opened.project.releases / first
        else:
            raise PolicyError(
                "the first evaluation needs a head, in whose coordinates it and all later ones "
                "are: --head RELEASE, or the directory of a model with head.npz"
            )
        return HeldOut(self.options, load_coordinates(directory))

    def settings(self) -> dict[str, Any]:
        """The coordinates, by their digest."""
        return {"coordinates": self.coordinates.digest()}

    def prepare(
        self, context: ReleaseContext, plan: PlannedRows, recorded: Mapping[str, Any] | None
    ) -> Design:
        """The new labels' pairs in these coordinates.

        Raises `PolicyError` for other coordinates than those of the sum that this window joins.
        """
        coordinates = self.coordinates
        first = recorded["first"] if recorded else find_sum_to_join(context, self.part)
        if first is not None:
            self._check_same_coordinates(context, first)
        provider = coordinates.load_provider(context.progress, context.workers)
        pairs = find_distinct_pairs(context.staged, context.executor)
        _, rows = read_planned_comparisons(context, plan, pairs)
        if first is None and not recorded:
            check_has_new_labels(rows)
        used, pair = np.unique(rows.pair, return_inverse=True)
        x = np.zeros((0, len(coordinates.basis.projection)), np.float32)
        if len(used):
            x = provider(take_rows(pairs.table, used))
        if x.shape[1] != len(coordinates.basis.projection):
            raise ProjectError(
                f"the head has {len(coordinates.basis.projection)} coefficients where its features "
                f"{coordinates.features} are {x.shape[1]}; it is damaged, or was altered"
            )
        rows, z = replace(rows, pair=pair), coordinates.basis.coordinates(x)
        return complete_design(
            find_priced_noise(context),
            rows,
            z,
            statistic.compute_unclipped_bounds(z, rows)
            if len(rows)
            else None,  # a judge has no bias
            plan=plan,
            parameters={"first": first},
            pairs=pairs,
            provider=provider,
            x=x,
            shape=coordinates.shape,
            basis=coordinates.basis,
            first=first,
        )

    def draw(
        self, context: ReleaseContext, prepared: Design, grant: Grant, map_path: Path | None
    ) -> None:
        """Sum and add noise, whose randomness ends with this call; note which labels were used."""
        if map_path is not None and (window := draw_window(context, prepared, map_path)):
            assert prepared.bounds
            bound = statistic.bound_sampling_covariance(prepared.z, prepared.rows, prepared.bounds)
            replace(window, sampling=bound).save(map_path / WINDOW)

    def finish(self, context: ReleaseContext, prepared: Design, grant: Grant) -> Finished:
        """Write the sum of all windows to a file, and return it with its card."""
        release = grant.release
        first = prepared.first or release.id
        windows = list_windows_of_sum(context, first, self.part, release)
        file = context.opened.project.work / FILE
        file.write_bytes(Evaluation.of_windows(self.coordinates, windows).to_bytes())
        card = build_statistic_card(context, prepared, grant, windows, self.coordinates.features)
        return Finished(card | {"kind": NAME, "train_with": "nothing"}, (), files=(file,))

    def _check_same_coordinates(self, context: ReleaseContext, first: str) -> None:
        coordinates = Evaluation.load(context.opened.project.releases / first).coordinates
        if coordinates.digest() != self.coordinates.digest():
            raise PolicyError(
                "evaluations add up in one set of coordinates only, and this head has others than "
                f"evaluation {first}, which this one joins: leave --head out, or begin anew, at a "
                "new charge, with --again"
            )
