"""The noise that a budget buys: of randomized labels, of statistics and of training runs.

    import labelguard as lg
    lg.account.statistic(epsilon=3, delta=1e-5, releases=12)

Numbers in, numbers out: nothing is read and nothing is charged. Each price is that of the module
beside this one which has the mechanism's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labelguard.accounting import ball, gaussian
from labelguard.accounting.blocks import find_block
from labelguard.accounting.components import (
    Groups,
    RandomizedBlocks,
    SampledRecords,
    Subsampled,
    Unproven,
)
from labelguard.errors import PolicyError
from labelguard.text import format_budget, pluralize, suggest_misspelled_keywords

__all__ = ["rr", "run", "statistic"]


@dataclass(frozen=True)
class LabelNoise:
    """The noise of labels that are randomized together."""

    # ε of a labeler, all uses together
    epsilon: float
    # δ of a labeler
    delta: float
    # labels of a labeler that are randomized together
    labels: int
    # how often that happens to the labeler
    uses: int
    # ε of one use
    epsilon0: float
    # how often a label is flipped
    flip_probability: float
    # 1/(1−2γ), by which a de-biased loss grows
    loss_multiplier: float
    # Σ(1−2γ)² over the labels of one use: what they tell, in labels without noise
    information: float

    def __repr__(self) -> str:
        labels, flip = pluralize(self.labels, "label"), f"{self.flip_probability:.4g}"
        if self.uses > 1:
            labels += f", {self.uses:,} times"
        return f"LabelNoise({format_budget(self)}, {labels}: flip probability {flip})"


@dataclass(frozen=True)
class BallNoise:
    """Ball noise of one statistic release, beside Gaussian noise at the same price."""

    # for so many components, or more
    components: int
    # its scale, in sensitivities
    scale: float
    # standard deviation of each of so many components, in sensitivities
    deviation: float
    # its variance over that of Gaussian noise
    variance_ratio: float
    # whether it is the smaller noise
    smaller: bool


@dataclass(frozen=True)
class StatisticNoise:
    """The noise of statistic releases that are priced together."""

    # ε of a labeler, all releases together
    epsilon: float
    # δ of a labeler
    delta: float
    # how many there are
    releases: int
    # standard deviation of Gaussian noise in each, in sensitivities
    noise_multiplier: float
    # ε of one alone at the same δ
    epsilon_of_one: float
    # the other shape of noise; null unless a number of components was asked for
    ball: BallNoise | None = None

    def __repr__(self) -> str:
        releases = pluralize(self.releases, "release")
        text = f"{format_budget(self)}, {releases}: noise multiplier {self.noise_multiplier:.4g}"
        other = f", {self.ball.deviation:.4g} of ball noise" if self.ball else ""
        return f"StatisticNoise({text}{other})"


@dataclass(frozen=True)
class RunNoise:
    """The noise of training runs that are priced together."""

    # uls, els, els-group or aup
    mechanism: str
    # ε of a labeler, all runs together
    epsilon: float
    # δ of a labeler
    delta: float
    # how many there are
    runs: int
    # with which a labeler, or a label, is in a step
    sampling_probability: float
    # steps of a run
    steps: int
    # els, els-group: labels of a labeler in a run, at most
    records: int | None
    # standard deviation of the noise in a step, in clip norms
    noise_multiplier: float
    # σ/(q√T): that of the mean of all steps' sums, divided by q, in clip norms; a sum of everybody
    # that was released once has as much
    noise_of_mean: float

    def __repr__(self) -> str:
        runs = pluralize(self.runs, f"{self.mechanism} run")
        text = f"{format_budget(self)}, {runs}: noise multiplier {self.noise_multiplier:.4g}"
        return f"RunNoise({text}, {self.noise_of_mean:.4g} of the mean of all steps)"


@suggest_misspelled_keywords
def rr(epsilon: float, delta: float = 0.0, labels: int = 1, uses: int = 1) -> LabelNoise:
    """Return ε0 and flip probability of `labels` of a labeler, randomized together `uses` times.

    Each by itself, 50 labels are 50 uses of one label. Raises `PolicyError` for values that are no
    budget.

    Example:
        >>> lg.account.rr(epsilon=3, delta=1e-5, labels=50)
        LabelNoise(ε = 3, δ = 1e-5, 50 labels: flip probability 0.4183)
        >>> lg.account.rr(epsilon=3, delta=1e-5, labels=1, uses=50)
        LabelNoise(ε = 3, δ = 1e-5, 1 label, 50 times: flip probability 0.4739)
    """
    try:
        price = RandomizedBlocks.calibrate(epsilon, delta, uses)
        law = find_block(price.threshold, labels)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    flip = law.flip_probability
    multiplier, information = 1 / law.mean_sign, labels * law.mean_sign**2
    return LabelNoise(epsilon, delta, labels, uses, price.epsilon0, flip, multiplier, information)


@suggest_misspelled_keywords
def statistic(
    epsilon: float, delta: float, releases: int = 1, components: int | None = None
) -> StatisticNoise:
    """Return the noise multiplier of each of `releases` statistics that cost (ε, δ) together.

    Beside it, what each would cost alone, and the ball noise of a single release of so many
    `components`. Raises `PolicyError` for values that are no budget, and for components of several
    releases.

    Example:
        >>> lg.account.statistic(epsilon=3, delta=1e-5, releases=12)
        StatisticNoise(ε = 3, δ = 1e-5, 12 releases: noise multiplier 4.817)
    """
    if components is not None and releases != 1:
        raise PolicyError(
            "components go with releases=1: ball noise has a price for one release only"
        )
    try:
        noise = gaussian.calibrate(epsilon, delta, releases)
        one = gaussian.epsilon(noise, delta)
        other = None
        if components is not None:
            scale = ball.calibrate(epsilon, delta, components)
            deviation = scale * math.sqrt(components + 1)
            ratio = (deviation / noise) ** 2
            other = BallNoise(components, scale, deviation, ratio, ratio < 1)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    return StatisticNoise(epsilon, delta, releases, noise, one, other)


_RUNS: Mapping[str, Any] = {
    "uls": Subsampled,
    "els": SampledRecords,
    "els-group": Groups,
    "aup": Unproven,
}


@suggest_misspelled_keywords
def run(
    mechanism: str,
    epsilon: float,
    delta: float,
    *,
    sampling_probability: float = 0.2,
    steps: int = 100,
    records: int | None = None,
    runs: int = 1,
) -> RunNoise:
    """Return the noise multiplier of each of `runs` training runs that cost (ε, δ) together.

    `mechanism` is uls, els, els-group or aup. A labeler (uls, aup) or a label (els) is in each of
    the `steps` with the `sampling_probability`; `records` bounds the labels of a labeler in a run
    (els and els-group, which need it).

    Raises `PolicyError` for values that are no budget or no sampling.

    Example:
        >>> lg.account.run("uls", 3, 1e-5, sampling_probability=0.1, steps=50).runs
        1
    """
    component_class = _RUNS.get(mechanism)
    if component_class is None:
        raise PolicyError(f"mechanism must be one of {', '.join(_RUNS)}, found {mechanism!r}")
    of_records = mechanism in ("els", "els-group")
    if of_records != (records is not None):
        raise PolicyError("records goes with els and els-group, which need it")
    more = {"records": records} if of_records else {}
    sampling = {"sampling_probability": sampling_probability, "steps": steps, **more}
    try:
        priced = component_class.calibrate(epsilon, delta, runs, **sampling)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    noise = priced.noise_multiplier
    mean = noise / (sampling_probability * math.sqrt(steps))
    return RunNoise(
        mechanism, epsilon, delta, runs, sampling_probability, steps, records, noise, mean
    )


def __dir__() -> list[str]:
    return __all__
