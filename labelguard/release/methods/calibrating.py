"""What a teacher is multiplied by, so that its probabilities mean what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labelguard.release.head import Window
from labelguard.release.methods.statistic_design import Design
from labelguard.release.protocol import Job

if TYPE_CHECKING:
    from labelguard.planner.calibration import Calibration


def calibration_of(
    job: Job, design: Design, window: Window, before: Sequence[Window], agreement: float
) -> Calibration:
    """Of the head of the sum that `window` joins, by simulation on public columns.

    It stands for all windows of the sum, those `before` it and itself. It is kept with the window,
    since a release that is finished later finds none of its labels new.
    """
    from labelguard.planner.calibration import EXPLAINED, calibrated
    from labelguard.planner.prior import Prior

    assert design.bounds is not None  # there is no window without a row
    every = [*before, window]
    return calibrated(
        design.x,
        design.rows,
        design.basis,
        design.shape,
        design.bounds,
        math.sqrt(sum(one.noise**2 for one in every)),
        window.kind,
        Prior(agreement, explained=EXPLAINED),
        windows=sum(float(one.weight.sum()) for one in every) / float(window.weight.sum()),
        progress=job.progress,
    )
