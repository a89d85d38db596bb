"""Rows that a head labels: those of the input, and further pairs that nobody labeled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels
from labelguard.ingest.layouts import LAYOUTS, Reading
from labelguard.ingest.pairs import DistinctPairs, distinct_pairs
from labelguard.ingest.staging import Staged, StagingOptions, stage
from labelguard.learning.features import column_features
from labelguard.release.methods.featured import FeatureOptions
from labelguard.release.protocol import Finished, Job
from labelguard.storage import buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.buckets import BucketWriter

Score = Callable[[pa.Table], NDArray[np.float64]]
"""Probabilities that the first side is preferred, of a table of pairs."""


_PUBLIC_CONTENT = (*LAYOUTS["pairs"][:3], *LAYOUTS["chosen"], "responses", "item_id", "question")


@dataclass(frozen=True)
class Further:
    """Further pairs: staged and distinct."""

    staged: Staged
    pairs: DistinctPairs


def read(options: FeatureOptions, job: Job, staged: Staged) -> Further | None:
    """Read the further pairs, without labels and labelers, if there are any."""
    if options.also is None:
        return None
    columns = {role: name for role, name in job.columns.items() if role in _PUBLIC_CONTENT}
    features = column_features(options.features)
    reading = Reading(columns, "none", features, labelled=False, question=job.question)
    further = stage(
        options.also,
        job.project.work / "also",
        job.keys,
        StagingOptions(reading, "", quarantine=job.skip_bad),
        lambda name, rows: job.progress(f"reading {name}: {rows:,} pairs", None),
    )
    if further.chat != staged.chat:
        raise InvalidLabels(
            "the pairs of --also must be texts if the labels are of texts, chats if of chats"
        )
    return Further(further, distinct_pairs(further))


def label(
    further: Further, labeled: DistinctPairs, job: Job, score: Score, finished: Finished
) -> Finished:
    """Label the further pairs that are not among the labeled ones, each once."""
    directory = job.project.work / "also-outcomes"
    new = np.flatnonzero(~further.pairs.among(labeled))
    rows = further.pairs.first_row[new].astype(np.uint64)
    keys = np.zeros((len(rows), 2), np.uint64)
    keys[:, 1] = new
    with BucketWriter(directory) as outcomes:
        if len(new):
            probability = score(further.pairs.table.take(pa.array(new)))
            append(outcomes, rows, keys, further.pairs.items[new], probability)
    return replace(finished, also=further.staged, also_outcomes=directory, also_rows=len(rows))


Options = TypeVar("Options", bound=FeatureOptions)


class Featured(Generic[Options]):
    """What mechanisms with features share: their options, and further pairs to label."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._further: Further | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Numeric columns named by the features."""
        return column_features(self.options.features)

    def settings(self) -> dict[str, Any]:
        """What was asked for; the further pairs are told by their digest."""
        return self.options.settings()

    def read(self, job: Job, staged: Staged) -> bytes:
        """Read the further pairs, if any; their digest."""
        self._further = read(self.options, job, staged)
        return self._further.staged.public_digest if self._further else b""

    def with_further(
        self, labeled: DistinctPairs, job: Job, score: Score, finished: Finished
    ) -> Finished:
        """The release with the further pairs labeled too, if there are any."""
        if self._further is None:
            return finished
        return label(self._further, labeled, job, score, finished)


def append(
    outcomes: BucketWriter,
    row: NDArray[np.generic],
    key: Blocks,
    items: Blocks,
    probability: NDArray[np.float64],
) -> None:
    """Rows labeled by a head: the likelier side is chosen, with its probability."""
    first = probability >= 0.5
    table = pa.table(
        {
            "row": row.astype(np.uint64),
            "key_hi": np.ascontiguousarray(key[:, 0]),
            "key_lo": np.ascontiguousarray(key[:, 1]),
            "value": first.astype(np.uint8),
            "label_probability": np.where(first, probability, 1 - probability),
        }
    )
    outcomes.append(table, buckets.bucket_of(items))
