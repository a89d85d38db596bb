"""`--mechanism statistic`: one noisy statistic, the head fitted from it, and its labels.

The head is a teacher: it relabels every pair of the input, and any others, at no further price.
A later release adds the labels that are new in it (a window) in the coordinates of the first one;
its teacher is fitted on the sum of all windows. With `--again` a new sum begins: corrections of
labels are no increments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from labelguard.learning.features import column_features
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import statistic
from labelguard.policy.events import STATISTIC_RELEASES
from labelguard.release import card, planning, windows
from labelguard.release.head import Head, Window, fit
from labelguard.release.methods import summing
from labelguard.release.methods.further import with_head, write_labeled
from labelguard.release.methods.options import StatisticOptions
from labelguard.release.methods.statistic_design import Design, design
from labelguard.release.planning import Plan
from labelguard.release.protocol import Finished, Job, Mechanism
from labelguard.storage import buckets


class Teacher(Mechanism[Design]):
    """The statistic release; `labelguard.mechanisms.statistic` has its mathematics."""

    name = statistic.NAME
    version = statistic.VERSION
    priced = STATISTIC_RELEASES.name
    choices = True

    def __init__(self, options: StatisticOptions) -> None:
        self.options = options
        self.features, self.also = column_features(options.features), options.also

    def settings(self) -> dict[str, Any]:
        """Features, and what of the shape was asked for."""
        return self.options.settings()

    def prepare(self, job: Job, plan: Plan, recorded: Mapping[str, Any] | None) -> Design:
        """Features, shape, coordinates: tuned by simulation on public columns, or as recorded."""
        return design(job, plan, self.options, recorded)

    def draw(self, job: Job, prepared: Design, grant: Grant, drawn: Path | None) -> None:
        """Sum and add noise, whose randomness ends with this call; note which labels were used."""
        if drawn is not None and (window := summing.draw(job, prepared, drawn)):
            window.save(drawn / windows.FILE)

    def finish(self, job: Job, prepared: Design, grant: Grant) -> Finished:
        """Fit the teacher on all windows and label every pair by it."""
        design, provider = prepared, prepared.provider
        summed = summing.windows(job, grant, self.part)
        coefficients, total, noise = fit(summed, design.basis, design.shape)
        head = Head(
            self.options.features,
            provider.identity(),
            provider.state(),
            design.shape,
            design.basis,
            coefficients,
            total,
            noise,
        )
        probability = head.probability(design.x)[design.pairs.of_row]
        selection, staged = design.plan.directory, job.staged.rows_directory
        for bucket in range(buckets.BUCKETS):
            found = planning.selected(selection, staged, bucket)
            if found is None:
                continue
            rows, table = found
            row = buckets.column(table, "row")[rows.index].astype(np.intp)
            items = buckets.blocks(table, "item")[rows.index]
            write_labeled(job.outcomes, bucket, row, rows.key, items, probability[row])
        said = statistic_card(job, design, grant, summed, self.options.features)
        said |= {"kind": "teacher", "train_with": "soft"}
        finished = Finished(said, ((job.staged, job.outcomes),))
        return with_head(finished, job, head, provider, design.pairs)


def statistic_card(
    job: Job, design: Design, grant: Grant, found: Sequence[Window], features: str
) -> dict[str, Any]:
    """What the card of a statistic of windows says; its own one, if labels were new, is the last of
    those `found`.
    """
    last = found[-1]
    drawn = grant.release.drawn  # without new labels the last window is an old one
    multiplier = design.noise_multiplier if drawn else last.noise / last.sensitivity
    return {
        "privacy": {
            "accounting": f"analytic Gaussian mechanism, {job.allowance.allowed} per "
            f"{job.policy.unit}, noise on a grid"
            + card.together(job.policy, STATISTIC_RELEASES.name)
        },
        "statistic": {
            "windows": len(found),
            "labels_in_window": drawn,
            "noise_multiplier": multiplier,
            "noise": last.noise,
            "sensitivity": last.sensitivity,
            "clip": last.clip,
            "features": features,
            "features_identity": design.provider.identity(),
            **({"of": "choices"} if design.rows.choices else {}),
            **asdict(design.shape) | {"components": len(design.basis.metric)},
        },
    }
