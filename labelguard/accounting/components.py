"""The components of a joint price: coins, noisy sums and runs of gradient methods.

Components say what the ledger stores, thresholds and scales of noise, so that what is priced is
what is charged (ValueError for numbers that the accountants of a kind do not give).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Self, TypeAlias

from labelguard.accounting import (
    _numbers,
    ball,
    example_level,
    gaussian,
    group,
    mixture,
    subsampled,
    zero_out,
)
from labelguard.accounting import randomized_response as rr


@dataclass(frozen=True)
class RandomizedBlocks:
    """At most `count` blocks of labels, each at the price of a coin with this threshold (`blocks`).

    A label that is flipped by itself with probability threshold/2^64 is a block of one.
    """

    threshold: int
    count: int

    distribution: ClassVar[str] = "binomial"

    def __post_init__(self) -> None:
        rr.epsilon0_of(self.threshold)
        _numbers.at_least_one(count=self.count)

    @classmethod
    def calibrate(cls, epsilon: float, delta: float, count: int) -> Self:
        """Return `count` blocks with as little noise as (epsilon, delta) allows.

        Raises ValueError where the noise of a coin could not be told from a fair one's.
        """
        threshold = rr.threshold(rr.calibrate(epsilon, delta, count))
        _numbers.within(1, rr.COIN_RANGE // 2 - 1, threshold=threshold)
        return cls(threshold, count)

    @property
    def epsilon0(self) -> float:
        """The largest loss of one block, in nats."""
        return rr.epsilon0_of(self.threshold)


@dataclass(frozen=True)
class Gaussians:
    """At most `count` Gaussian releases whose noise has this deviation, in sensitivities."""

    noise_multiplier: float
    count: int

    distribution: ClassVar[str] = "Gaussian"

    def __post_init__(self) -> None:
        _numbers.positive(noise_multiplier=self.noise_multiplier)
        _numbers.within(0, 2**23, noise_multiplier=self.noise_multiplier)
        _numbers.at_least_one(count=self.count)

    @classmethod
    def calibrate(cls, epsilon: float, delta: float, count: int) -> Self:
        """Return `count` releases with as little noise as (epsilon, delta) allows."""
        return cls(gaussian.calibrate(epsilon, delta, count), count)


@dataclass(frozen=True)
class Balls:
    """One release with ball noise of this scale, in sensitivities, in so many components or more.

    ValueError for more than one: Gaussian noise composes better.
    """

    scale: float
    components: int
    count: int = 1

    distribution: ClassVar[str] = "ball"

    def __post_init__(self) -> None:
        _numbers.positive(scale=self.scale)
        _numbers.within(0, 2**23, scale=self.scale)
        _numbers.at_least_one(components=self.components, count=self.count)
        _numbers.within(1, ball.MOST_COMPONENTS, components=self.components)
        if self.count > 1:
            raise ValueError(
                f"ball noise has a price for one release only, found {self.count}; "
                "use Gaussian noise for several"
            )

    @classmethod
    def calibrate(cls, epsilon: float, delta: float, count: int, components: int) -> Self:
        """Return a release with as little noise as (epsilon, delta) allows; `count` is 1."""
        return cls(ball.calibrate(epsilon, delta, components), components, count)

    @property
    def epsilon0(self) -> float:
        """The largest loss of the release, in nats."""
        return ball.epsilon(self.scale, 0.0, self.components)


@dataclass(frozen=True)
class Subsampled:
    """At most `count` runs of user-wise DP-SGD: noise relative to the clip norm (`subsampled`)."""

    noise_multiplier: float
    sampling_probability: float
    steps: int
    count: int

    distribution: ClassVar[str] = "subsampled Gaussian"

    def __post_init__(self) -> None:
        subsampled.check(self.noise_multiplier, self.sampling_probability, self.steps)
        _numbers.at_least_one(count=self.count)

    @classmethod
    def calibrate(
        cls, epsilon: float, delta: float, count: int, *, sampling_probability: float, steps: int
    ) -> Self:
        """Return `count` runs with as little noise as (epsilon, delta) allows them together."""
        noise = subsampled.calibrate(epsilon, delta, sampling_probability, steps * count)
        return cls(noise, sampling_probability, steps, count)


@dataclass(frozen=True, kw_only=True)
class Converted(ABC):
    """At most `count` runs of which a joint price takes no more than (epsilon, delta) each.

    The guarantee of such a run does not come from a pair of distributions under `replace_labels`,
    but was converted to an (epsilon, delta) from elsewhere. `compute_own_delta` says what the noise
    gives at that epsilon, which a price does not believe: it has to be at most delta.
    """

    noise_multiplier: float
    sampling_probability: float
    steps: int
    epsilon: float
    delta: float
    count: int

    distribution: ClassVar[str]

    def __post_init__(self) -> None:
        subsampled.check(self.noise_multiplier, self.sampling_probability, self.steps)
        _numbers.positive(epsilon=self.epsilon, delta=self.delta)
        _numbers.delta_below_one(self.delta)
        _numbers.at_least_one(count=self.count)

    @classmethod
    def calibrate(cls, epsilon: float, delta: float, count: int, **sampling: Any) -> Self:
        """Return `count` runs with as little noise as (epsilon, delta) allows them together.

        Half of delta is for losses that are infinite, the rest for those of ±ε, which compose as
        coins. A single run leaves 2^-30 of delta to the rounding of a joint price.
        """
        if count == 1:
            delta *= 1 - 2.0**-30
        else:
            epsilon, delta = rr.calibrate(epsilon, delta / 2, count), delta / 2 / count
        noise = cls.calibrate_noise(epsilon, delta, **sampling)
        return cls(noise_multiplier=noise, epsilon=epsilon, delta=delta, count=count, **sampling)

    @classmethod
    @abstractmethod
    def calibrate_noise(cls, epsilon: float, delta: float, **sampling: Any) -> float:
        """Return the noise multiplier of one run at this price."""

    @abstractmethod
    def compute_own_delta(self) -> float:
        """Return the δ of one run at this epsilon; never below the true value."""


@dataclass(frozen=True, kw_only=True)
class _OfRecords(Converted):
    """Runs that draw single records, of which a labeler has so many at most."""

    records: int

    # `example_level` or `group`
    accountant: ClassVar[ModuleType]

    def __post_init__(self) -> None:
        super().__post_init__()
        mixture.check(self.noise_multiplier, self.sampling_probability, self.steps, self.records)

    @classmethod
    def calibrate_noise(cls, epsilon: float, delta: float, **sampling: Any) -> float:
        return float(cls.accountant.calibrate(epsilon, delta, **sampling))

    def compute_own_delta(self) -> float:
        run = self.noise_multiplier, self.sampling_probability, self.steps, self.records
        return float(self.accountant.delta(*run, self.epsilon))


class SampledRecords(_OfRecords):
    """ELS: DP-SGD with example-level sampling, at the smaller of two bounds (`example_level`)."""

    distribution: ClassVar[str] = "subsampled Gaussian, of records"
    accountant: ClassVar[ModuleType] = example_level


class Groups(_OfRecords):
    """The same at the bound of group privacy alone (`group`)."""

    distribution: ClassVar[str] = "subsampled Gaussian, group privacy"
    accountant: ClassVar[ModuleType] = group


@dataclass(frozen=True, kw_only=True)
class Unproven(Converted):
    """AUP "as published": its (epsilon, delta) is NOT proven (aup-rlhf, algorithms 1 to 3).

    The noise multiplier is that of a run of user-wise DP-SGD for (epsilon/2, delta/2), which is
    what the algorithm spends on its noise; the price believes the paper for the rest.
    """

    distribution: ClassVar[str] = "as published, not proven"

    @classmethod
    def calibrate_noise(cls, epsilon: float, delta: float, **sampling: Any) -> float:
        return subsampled.calibrate(epsilon / 2, delta / 2, **sampling)

    def compute_own_delta(self) -> float:
        return 2 * subsampled.delta(
            self.noise_multiplier, self.sampling_probability, self.steps, self.epsilon / 2
        )


@dataclass(frozen=True)
class WholeRecords:
    """At most `count` stages of training on whole records, under `zero_out` (`zero_out`).

    It has a price by itself alone: what else a policy pays for is under `replace_labels`.
    """

    noise_multiplier: float
    sampling_probability: float
    steps: int
    updates: int
    count: int

    distribution: ClassVar[str] = "subsampled Gaussian, zero-out"

    def __post_init__(self) -> None:
        zero_out.check(*self._merged_run)
        _numbers.at_least_one(count=self.count)

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        delta: float,
        count: int,
        *,
        sampling_probability: float,
        steps: int,
        updates: int,
    ) -> Self:
        """Return `count` stages with as little noise as (epsilon, delta) allows them together."""
        terms = sampling_probability, steps * count, updates
        return cls(
            zero_out.calibrate(epsilon, delta, *terms), sampling_probability, steps, updates, count
        )

    @property
    def _merged_run(self) -> tuple[float, float, int, int]:
        """All of them as one run."""
        steps = self.steps * self.count
        return self.noise_multiplier, self.sampling_probability, steps, self.updates

    def delta(self, epsilon: float) -> float:
        """Return the δ of all of them at this epsilon."""
        return zero_out.delta(*self._merged_run, epsilon)

    def epsilon(self, delta: float) -> float:
        """Return the ε of all of them at this delta."""
        return zero_out.epsilon(*self._merged_run, delta)


Component: TypeAlias = (
    RandomizedBlocks
    | Gaussians
    | Balls
    | Subsampled
    | SampledRecords
    | Groups
    | Unproven
    | WholeRecords
)
