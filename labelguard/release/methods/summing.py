"""One window of a statistic: the noisy sum of the labels that are new, and what it adds up with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelguard.keys import keyring
from labelguard.keys.parts import Part
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import choices, statistic
from labelguard.mechanisms.noise import NONCE_BYTES
from labelguard.mechanisms.statistic import Bounds, Floats
from labelguard.project import private_map
from labelguard.release import planning
from labelguard.release.head import Window
from labelguard.release.methods import describing
from labelguard.release.methods.statistic_design import Design, committed
from labelguard.release.protocol import Job
from labelguard.release.windows import windows_of
from labelguard.storage import blocks, buckets
from labelguard.terms import LABEL_TIE


@dataclass(frozen=True)
class Noting:
    """A task for `note`: the staged and the selected rows, and the map that was begun."""

    staged: Path
    selected: Path
    drawn: Path


def draw(job: Job, design: Design, drawn: Path) -> Window | None:
    """Sum the new labels and add noise, whose randomness ends with this call.

    Which labels were used is noted in the map that was begun at `drawn`. None if no label is new.
    """
    task = Noting(job.staged.rows_directory, design.plan.directory, drawn)
    found = [part for part in job.over_buckets("summing", note, task) if part is not None]
    if design.bounds is None or design.grid is None:
        return None
    labels = np.concatenate(found)
    total = statistic.exact_sum(design.z, design.rows, labels, design.bounds, design.grid.step)
    noisy = statistic.noisy(total, design.grid, keyring.random_bytes(NONCE_BYTES))
    used = np.flatnonzero(statistic.pair_weights(design.rows, design.bounds, len(design.z)))
    return Window(
        np.asarray(noisy * design.grid.step, np.float64),
        design.grid.deviation,
        *_likelihood(design, design.bounds, used),
        kind=design.grid.kind,
        least=design.grid.least,
        **describing.of_window(
            design.x,
            design.z,
            design.rows,
            design.bounds,
            used,
            design.provider.groups(),
            design.provider.known(design.pairs.table),
        ),
    )


def note(task: Noting, bucket: int) -> NDArray[np.uint8] | None:
    """Write the new labels of one bucket into the map, without values.

    PRIVATE: returns the labels, in the order of the design's rows.
    """
    found = planning.selected(task.selected, task.staged, bucket)
    if found is None:
        return None
    rows, table = found
    new = rows[np.flatnonzero(rows.new)]
    if len(new.index):
        nothing = np.zeros(len(new.index), np.uint64)
        tie = np.full(len(new.index), LABEL_TIE, np.uint8)
        private_map.write_bucket(
            task.drawn, bucket, new.key, new.author, new.version, tie, nothing, new.content
        )
    return buckets.column(table, "label")[new.index].astype(np.uint8)


def _likelihood(
    design: Design, bounds: Bounds, used: NDArray[np.intp]
) -> tuple[NDArray[np.float32], Floats, float, float, NDArray[np.int64] | None]:
    """What the likelihood needs beside the statistic, all public: see `Window`."""
    rows = design.rows
    weight = statistic.pair_weights(rows, bounds, len(design.z))
    if not rows.choices or rows.size is None:
        return design.z[used], weight[used], bounds.clip, bounds.sensitivity, None
    size = np.zeros(len(design.z), np.int64)
    size[rows.pair] = rows.size
    sets = blocks.unique(design.pairs.items[used])[1]
    z, offsets = choices.responses_of_pairs(
        design.z[used], sets, design.pairs.number[used], size[used]
    )
    of_set = np.zeros(len(offsets) - 1)
    np.maximum.at(of_set, sets, weight[used] * size[used] / 2)  # a pair weighs w · 2/K
    return z, of_set, bounds.clip, bounds.sensitivity, np.diff(offsets).astype(np.int64)


def earlier(job: Job, design: Design, part: Part) -> list[Window]:
    """The windows of the sum that a new window joins; none if it begins one."""
    if design.first is None:
        return []
    records = committed(job.opened.ledger, part)
    return list(windows_of(job.opened.project.released, design.first, records))


def windows(job: Job, grant: Grant, part: Part) -> list[Window]:
    """The windows of the sum, of one part's labels, that a release belongs to, its own last."""
    own = grant.release
    first = own.settings["parameters"]["first"] or own.id
    records = [*committed(job.opened.ledger, part), own]
    return list(windows_of(job.opened.project.released, first, records))
