"""Labels of one labeler that move a statistic far, and how far: what several tests share."""

import itertools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from labelguard.mechanisms import statistic
from labelguard.mechanisms.statistic import Rows
from labelguard.text import LABEL_A, LABEL_B, LABEL_TIE

ROUNDING = 1 + 1e-8
NO_CLIP = 1e300
KINDS = ("normal", "aligned", "deficient", "sparse", "wide")

Floats = NDArray[np.float64]
Labels = NDArray[np.uint8]


def comparisons(counts):
    """The u-th labeler compared counts[u] pairs that nobody else saw."""
    sizes = np.array(list(counts), np.intp)
    return Rows(np.arange(sizes.sum()), np.repeat(np.arange(len(sizes)), sizes), len(sizes))


def rankings(responses, unit):
    """Pairs (i, j), i < j, of every ranking of `responses`, (K, d) each, and whose they are."""
    pairs, ranking = [], []
    for number, features in enumerate(responses):
        first, second = np.triu_indices(len(features), 1)
        pairs.append(features[first] - features[second])
        ranking += [number] * len(first)
    z, of_row = np.concatenate(pairs), np.array(ranking)
    whose = np.array(list(unit), np.intp)
    size = np.array([len(features) for features in responses])[of_row]
    return z, Rows(np.arange(len(z)), whose[of_row], int(whose.max()) + 1, of_row, size)


def labels_of_orders(size):
    """The labels of the pairs of every ranking of `size` responses, with and without ties."""
    first, second = np.triu_indices(size, 1)
    found = {
        tuple(np.sign(ranks[second] - ranks[first]).tolist())
        for ranks in map(np.array, itertools.product(range(size), repeat=size))
    }
    return [
        np.choose(np.array(signs) + 1, [LABEL_B, LABEL_TIE, LABEL_A]).astype(np.uint8)
        for signs in sorted(found)
    ]


def unclipped(z, rows):
    """Bounds under which nobody is clipped, so that only the movement of labels counts."""
    return statistic.compute_unclipped_bounds(z, rows)


def parts(z, rows, labels, bounds, *, clip=None):
    """clip_C(w_u Σ_j share (y_uj − ½) z_uj) by its definition, shape (units, components)."""
    half = np.choose(labels, [-0.5, 0.5, 0.0]) * rows.row_weights()
    of_unit = np.zeros((rows.units, z.shape[1]))
    np.add.at(of_unit, rows.unit, half[:, None] * z[rows.pair].astype(np.float64))
    of_unit *= bounds.weight[:, None]
    radius = bounds.clip if clip is None else clip
    norm = np.linalg.norm(of_unit, axis=1, keepdims=True)
    return np.asarray(of_unit * (radius / np.maximum(norm, radius)))


def farthest(points):
    """The largest distance between any two of the points."""
    return float(pdist(np.stack([np.asarray(point, np.float64) for point in points])).max())


def bad_labels(z, rng):
    """Labels of one labeler's rows, (m, d), that move the sum of their halves far."""
    m, exact = len(z), z.astype(np.float64)
    exact = exact / max(np.abs(exact).max(initial=0), 1e-300)
    directions = [
        np.linalg.svd(exact, full_matrices=False)[2][0],
        *rng.standard_normal((2, z.shape[1])),
    ]
    found: list[Labels] = [np.full(m, LABEL_TIE, np.uint8)]
    for direction in directions:
        signs = np.where(exact @ direction >= 0, 1.0, -1.0)
        for _ in range(10):  # each round moves the sum no less far
            signs = np.where(exact @ (signs @ exact) >= 0, 1.0, -1.0)
        found += [(signs > 0).astype(np.uint8), (signs < 0).astype(np.uint8)]
    return found + [rng.integers(0, 3, m).astype(np.uint8) for _ in range(3)]


def every_label(m):
    """All labels of m rows."""
    return [np.array(labels, np.uint8) for labels in itertools.product(range(3), repeat=m)]


def replaced(rows, unit, own, others):
    """The labels of all rows, `own` being those of one labeler."""
    labels = others.copy()
    labels[rows.unit == unit] = own
    return labels


def largest_change(z, rows, unit, choices, mechanism):
    """How far a mechanism's result moves at most as one labeler's labels take all `choices`."""
    others = np.random.default_rng(len(rows)).integers(0, 3, len(rows)).astype(np.uint8)
    return farthest(mechanism(replaced(rows, unit, own, others)) for own in choices)


def on_grid(bounds, components, step):
    """Δ_h = min(2C, Δ + h√d)."""
    return min(2 * bounds.clip, bounds.sensitivity + step * math.sqrt(components))


def assert_bounded(z, rows, unit, choices, bounds, step):
    """Neither the sum nor what it rounds moves too far; returns the sum's largest movement."""
    exact = largest_change(
        z, rows, unit, choices, lambda y: statistic.clip_and_sum_labels(z, rows, y, bounds, step)
    )
    assert exact * step <= on_grid(bounds, z.shape[1], step) * ROUNDING
    plain = largest_change(z, rows, unit, choices, lambda y: parts(z, rows, y, bounds)[unit])
    assert plain <= bounds.sensitivity * ROUNDING
    return exact * step


def coordinates(kind, rows, components, rng):
    """Random coordinates of one of KINDS, shape (rows, components)."""
    z = rng.standard_normal((rows, components))
    if kind == "aligned":
        z = np.abs(z[:, :1]) * z[:1]
    elif kind == "deficient":
        z = z[:, :1] @ rng.standard_normal((1, components))
    elif kind == "sparse":
        z[rng.random(rows) < 0.5] = 0
    elif kind == "wide":
        z *= 10 ** rng.uniform(-18, 18, (rows, 1))
    return z.astype(np.float32)
