"""What predicts preferences without any training, for the rows that a model is evaluated on.

The longer response; the side that the released labels of the training rows prefer on the whole, of
the two as they are sorted by content, as a release knows no other order; and the release's head,
where it has one. All are functions of the release and of public pairs.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.learning.features import column_features
from labelguard.release.head import FILE, Head
from labelguard.release.holdout import item_sides
from labelguard.release.preferred_pairs import PAIRS, longer, read_preferred, scan_pairs
from labelguard.terms import Progress
from labelguard_trainer.training.evaluate import TEACHER
from labelguard_trainer.training.request import Request

__all__ = ["of_probes", "of_release"]

Margins = dict[str, NDArray[np.float64]]


def of_release(request: Request, progress: Progress) -> Margins:
    """Margins of `chosen` in the rows that are evaluated, by baseline, shape (n,) each."""
    rows = request.evaluated
    frame = scan_pairs(request.source.file).select(PAIRS).filter(pl.Series(rows))
    return _margins(request, frame.collect().to_arrow(), request.first[rows], progress)


def of_probes(request: Request, progress: Progress) -> Margins:
    """The same of public pairs, if there are any."""
    if request.probes is None:
        return {}
    first = item_sides(request.probes)[1]
    return _margins(request, read_preferred(request.probes), first, progress)


def _margins(
    request: Request, pairs: pa.Table, first: NDArray[np.bool_], progress: Progress
) -> Margins:
    found = {
        "longer_response": longer(pairs),
        "majority_side": np.where(first, 1.0, -1.0) * _majority(request),
    }
    head = request.source.file.parent / FILE
    if request.non_private or not head.exists() or not len(pairs):
        return found
    progress("asking the teacher", None)
    return found | _teacher(Head.load(head.parent), pairs, progress)


def _majority(request: Request) -> float:
    """Above 0 where the training rows prefer their items' first sides, below for the second.

    A row counts by how much it says: 1 − 2γ of a flipped label, 2p − 1 of a probability.
    """
    flip, probability = (request.said[f"{name}_probability"] for name in ("flip", "label"))
    weight = np.where(np.isnan(probability), 1.0, 2 * probability - 1)
    weight = np.where(np.isnan(flip), weight, 1 - 2 * flip)
    rows = ~request.held_out
    return float(weight[rows] @ np.where(request.first[rows], 1.0, -1.0))


def _teacher(head: Head, pairs: pa.Table, progress: Progress) -> Margins:
    """Nothing where its features cannot be computed of texts, or not here."""
    if column_features(head.features):
        return {}
    sides = pa.table([pairs[name] for name in PAIRS], names=["prompt", "first", "second"])
    try:
        return {TEACHER: head.margins(head.coordinates.provider(progress)(sides))}
    except LabelguardError:
        return {}
