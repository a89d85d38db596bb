"""`--mechanism statistic`: one noisy statistic, the head fitted from it, and its labels.

The head is a teacher: it relabels every pair of the input, and any others, at no further price.
A later release adds the labels that are new in it (a window) in the coordinates of the first one;
its teacher is fitted on the sum of all windows. With `--again` a new sum begins: corrections of
labels are no increments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from labelguard.learning.features import column_features
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import statistic
from labelguard.mechanisms.noise import Noise
from labelguard.policy.events import STATISTIC_RELEASES
from labelguard.release import card, windows
from labelguard.release.coefficients import coefficients_of
from labelguard.release.head import Head, Window, fit
from labelguard.release.methods import describing, summing
from labelguard.release.methods.calibrating import calibration_of
from labelguard.release.methods.further import label_pairs, with_head
from labelguard.release.methods.options import StatisticOptions
from labelguard.release.methods.statistic_design import Design, check_joins, design
from labelguard.release.planning import PlannedRows
from labelguard.release.protocol import Finished, Job, Mechanism


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

    def check(self, job: Job) -> None:
        """Whether the window would fit the sum that it joins."""
        check_joins(job, self.options)

    def prepare(self, job: Job, plan: PlannedRows, recorded: Mapping[str, Any] | None) -> Design:
        """Features, shape, coordinates: tuned by simulation on public columns, or as recorded."""
        return design(job, plan, self.options, recorded)

    def draw(self, job: Job, prepared: Design, grant: Grant, drawn: Path | None) -> None:
        """Sum and add noise, whose randomness ends with this call; note which labels were used."""
        if drawn is not None and (window := summing.draw(job, prepared, drawn)):
            before = summing.earlier(job, prepared, self.part)
            found = calibration_of(job, prepared, window, before, self.options.agreement)
            replace(window, **vars(found)).save(drawn / windows.FILE)

    def finish(self, job: Job, prepared: Design, grant: Grant) -> Finished:
        """Fit the teacher on all windows and label every pair by it."""
        design, provider = prepared, prepared.provider
        summed = summing.windows(job, grant, self.part)
        coefficients, total, noise = fit(summed, design.basis, design.shape)
        scale = summed[-1].scale
        head = Head(
            self.options.features,
            provider.identity(),
            provider.state(),
            design.shape,
            design.basis,
            scale * coefficients,
            total,
            noise,
            scale,
            describing.described(
                provider.groups(),
                design.x,
                summed,
                design.shape,
                design.basis,
                scale * coefficients,
                scale=scale,
                design_effect=summed[-1].design_effect,
            ),
        )
        label_pairs(job, design.plan, design.pairs, head.probability(design.x))
        said = statistic_card(job, design, grant, summed, self.options.features)
        said["statistic"] |= {"probability_scale": scale}
        said |= {"kind": "teacher", "train_with": "soft", "head": coefficients_of(head).told()}
        finished = Finished(said, ((job.staged, job.outcomes),))
        return with_head(finished, job, head, provider, design.pairs)


_ACCOUNTING = {
    "gaussian": "analytic Gaussian mechanism",
    "ball": "ball noise (K-norm mechanism of the l2 ball)",
}


def statistic_card(
    job: Job, design: Design, grant: Grant, found: Sequence[Window], features: str
) -> dict[str, Any]:
    """What the card of a statistic of windows says; its own one, if labels were new, is the last of
    those `found`.
    """
    last = found[-1]
    drawn = grant.release.drawn  # without new labels the last window is an old one
    noise = design.noise if drawn else _noise_of(last)
    return {
        "privacy": {
            "accounting": f"{_ACCOUNTING[design.noise.kind]}, {job.allowance.allowed} per "
            f"{job.policy.unit}" + card.together(job.policy, STATISTIC_RELEASES.name)
        },
        "statistic": {
            "windows": len(found),
            "labels_in_window": drawn,
            "noise_kind": noise.kind,
            "noise_scale": noise.scale,
            "noise_least_components": noise.least,
            "noise": last.noise,
            "sensitivity": last.sensitivity,
            "clip": last.clip,
            "features": features,
            "features_identity": design.provider.identity(),
            **({"of": "choices"} if design.rows.choices else {}),
            **asdict(design.shape) | {"components": len(design.basis.metric)},
        },
    }


def _noise_of(window: Window) -> Noise:
    """The noise of a window that was released, in its sensitivities."""
    one = Noise(window.kind, 1.0, window.least).deviation(len(window.statistic))
    return Noise(window.kind, window.noise / window.sensitivity / one, window.least)
