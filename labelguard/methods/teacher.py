"""`--mechanism statistic`: one noisy statistic, the head fitted from it, and its labels.

The head is a teacher: it relabels every pair of the input, and any others, at no further price.
A later release adds the labels that are new in it (a window) in the coordinates of the first one;
its teacher is fitted on the sum of all windows. With `--again` a new sum begins: corrections of
labels are no increments.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard import card, segments
from labelguard._files import fresh_directory, publish_directory
from labelguard.errors import LedgerError, ProjectError
from labelguard.labels import LABEL_TIE
from labelguard.ledger import Grant
from labelguard.mechanisms import statistic
from labelguard.mechanisms.protocol import Finished, Job
from labelguard.methods import also
from labelguard.methods.design import Design, committed, design, selected
from labelguard.methods.featured import FeatureOptions
from labelguard.planning import Plan
from labelguard.policy import Priced
from labelguard.released_head import FILE, Head, Window, fit
from labelguard.segments import BucketWriter, ReleasedMap
from labelguard.staging import Staged

_WINDOW = "window.npz"


class Teacher(also.Featured[FeatureOptions]):
    """The statistic release; `labelguard.mechanisms.statistic` has its mathematics."""

    name = statistic.NAME
    version = statistic.VERSION
    priced: Priced = "statistic"

    def __init__(self, options: FeatureOptions) -> None:
        super().__init__(options)
        self._design: Design | None = None

    def prepare(
        self, job: Job, staged: Staged, plan: Plan, recorded: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Features, shape, coordinates: tuned by simulation on public columns, or as recorded."""
        self._design = design(job, staged, plan, self.options, recorded)
        return self._design.parameters()

    def draw(self, job: Job, staged: Staged, plan: Plan, grant: Grant, epoch: int) -> None:
        """Sum, seal, add noise; then the private map is written and flushed as a whole."""
        final = job.project.released / grant.release.id
        if final.exists():
            return
        design = self._fixed
        temporary = fresh_directory(final.with_name(f"{final.name}.partial"), mode=0o700)
        if design.bounds and design.grid:
            total = self._sum(job, staged, plan, grant, epoch)
            self._window(job, grant, total).save(temporary / _WINDOW)
        for bucket, rows in selected(plan):
            new = rows[np.flatnonzero(rows.new)]
            if len(new.index):
                nothing = np.zeros(len(new.index), np.uint64)
                tie = np.full(len(new.index), LABEL_TIE, np.uint8)
                ReleasedMap.write(
                    temporary, bucket, new.key, new.version, tie, nothing, new.content
                )
        (temporary / ReleasedMap.COUNT).write_text(str(plan.drawn), encoding="ascii")
        publish_directory(temporary, final)

    def _sum(
        self, job: Job, staged: Staged, plan: Plan, grant: Grant, epoch: int
    ) -> NDArray[np.int64]:
        """PRIVATE: the exact sum, kept and sealed: noise is never drawn over another.

        A resumed release takes the sum that was kept and reads no label, so that nothing, not even
        whether it can be resumed, depends on labels that were edited meanwhile.
        """
        design, release = self._fixed, grant.release.id
        assert design.bounds and design.grid
        nonce, fingerprint = job.keys.nonce(release), design.fingerprint()
        kept = job.keys.kept(release)
        if kept is None:
            labels = _labels(staged, plan)
            total = statistic.exact_sum(
                design.z, design.rows, labels, design.bounds, design.grid.step
            )
            kept = fingerprint + total.astype(">i8").tobytes()
            job.keys.keep(release, kept)
        elif kept[: len(fingerprint)] != fingerprint:
            raise LedgerError(
                f"release {release} cannot be resumed: its features are no longer, bit by bit, "
                "what it was begun with (encoder, library or type of numbers); restore them and "
                "run the same command again"
            )
        job.ledger.seal(grant, epoch, hmac.digest(nonce, b"seal" + kept, "sha256").hex())
        return np.frombuffer(kept[len(fingerprint) :], ">i8").astype(np.int64)

    def _window(self, job: Job, grant: Grant, total: NDArray[np.int64]) -> Window:
        """The noisy statistic of the new labels."""
        design = self._fixed
        assert design.bounds and design.grid
        # A key of the sum as well: no nonce, wherever it was copied to, hides two sums alike.
        noise = b"noise" + design.fingerprint() + total.astype(">i8").tobytes()
        key = hmac.digest(job.keys.nonce(grant.release.id), noise, "sha256")
        noisy = statistic.noisy(total, design.grid, key)
        weight = statistic.pair_weights(design.rows, design.bounds, len(design.z))
        used = np.flatnonzero(weight)
        return Window(
            np.asarray(noisy * design.grid.step, np.float64),
            design.grid.scale * design.grid.step,
            design.z[used],
            weight[used],
            design.bounds.clip,
            design.bounds.sensitivity,
        )

    def finish(self, job: Job, staged: Staged, plan: Plan, grant: Grant) -> Finished:
        """Fit the teacher on all windows and label every pair by it."""
        design = self._fixed
        windows = list(_windows(job, grant))
        coefficients, total, noise = fit(windows, design.basis, design.shape)
        head = Head(
            self.options.features,
            design.provider.identity(),
            design.provider.state(),
            design.shape,
            design.basis,
            coefficients,
            total,
            noise,
        )
        probability = head.probability(design.x)
        with BucketWriter(job.outcomes) as outcomes:
            for bucket, rows in selected(plan):
                table = segments.read_bucket(staged.rows_directory, bucket)
                assert table is not None
                row = segments.column(table, "row")[rows.index]
                items = segments.blocks(table, "item")[rows.index]
                chosen = probability[design.pairs.of_row[row.astype(np.intp)]]
                also.append(outcomes, row, rows.key, items, chosen)
        finished = Finished(self._card(job, grant, windows), {FILE: head.to_bytes()})
        return self.with_further(
            design.pairs,
            job,
            lambda pairs: head.probability(design.provider(pairs)),
            finished,
        )

    def _card(self, job: Job, grant: Grant, windows: list[Window]) -> dict[str, Any]:
        design = self._fixed
        last = windows[-1]
        drawn = grant.release.settings["drawn"]  # without new labels the last window is an old one
        multiplier = design.noise_multiplier if drawn else last.noise / last.sensitivity
        return {
            "kind": "teacher",
            "privacy": {
                "accounting": f"analytic Gaussian mechanism, {job.allowance.places} per "
                f"{job.policy.unit}, noise on a grid" + card.together(job.policy, "statistic")
            },
            "statistic": {
                "windows": len(windows),
                "labels_in_window": grant.release.settings["drawn"],
                "noise_multiplier": multiplier,
                "noise": last.noise,
                "sensitivity": last.sensitivity,
                "clip": last.clip,
                "features": self.options.features,
                "features_identity": design.provider.identity(),
                **asdict(design.shape) | {"components": len(design.basis.metric)},
            },
            "train_with": "soft",
        }

    @property
    def _fixed(self) -> Design:
        assert self._design is not None, "prepare comes first"
        return self._design


def _labels(staged: Staged, plan: Plan) -> NDArray[np.uint8]:
    """PRIVATE: the labels of the design's rows, in the same order."""
    labels = []
    for bucket, chosen in selected(plan):
        table = segments.read_bucket(staged.rows_directory, bucket)
        assert table is not None
        labels.append(segments.column(table, "label")[chosen.index[chosen.new]])
    return np.concatenate(labels).astype(np.uint8)


def _windows(job: Job, grant: Grant) -> Iterator[Window]:
    """The windows of the sum that a release belongs to, its own last."""
    own = grant.release
    first = own.settings["parameters"]["first"] or own.id
    for record in [*committed(job), own]:
        path = job.project.released / record.id / _WINDOW
        if first in (record.id, record.settings["parameters"]["first"]):
            if path.exists():
                yield Window.load(path)
            elif record.settings["drawn"]:
                raise ProjectError(f"{path} is missing; restore it from a backup")
