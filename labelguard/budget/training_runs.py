"""Training runs by noisy gradients: a model's own weights learn, under a labeler-level guarantee.

A run is so many steps of a sum of clipped gradients, of sampled labelers or labels, with Gaussian
noise. Its sampling belongs to the allowance, so that what runs is what is priced. Each labeler of
the population is charged, whoever is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from labelguard.budget.event_kind import AllowanceTerms, ClippedSums, Price, Sampling, delta_of_bits
from labelguard.errors import PolicyError

if TYPE_CHECKING:
    from labelguard.accounting.joint import Component


class TrainingRuns(ClippedSums):
    """Runs of one mechanism. Every run learns from all labels of a labeler, released or not."""

    counts = "runs"
    # True if labels are sampled one by one, of which a labeler has so many at most; else labelers
    # are.
    by_record: ClassVar[bool] = False
    # The component that prices it.
    run: ClassVar[str]

    def _run(self) -> Any:
        from labelguard.accounting import components

        return getattr(components, self.run)

    def component(self, price: Price, count: int) -> Component:
        """Return all steps of so many runs."""
        component: Component = self._run()(**price, count=count)
        return component

    def calibrator(self, allowance: AllowanceTerms) -> Callable[[float, float, int], Component]:
        """Return that of runs with this sampling."""
        sampling = allowance.sampling
        assert sampling is not None
        records = {"records": sampling.records} if self.by_record else {}
        return partial(
            self._run().calibrate,
            sampling_probability=sampling.probability,
            steps=sampling.steps,
            **records,
        )

    def parse_terms(self, terms: Mapping[str, str]) -> dict[str, Any]:
        """`q=0.2,steps=100`, and `records=8` where labels are sampled."""
        known = {"q", "steps"} | ({"records"} if self.by_record else set())
        super().parse_terms({name: value for name, value in terms.items() if name not in known})
        records = int(terms["records"]) if self.by_record else None
        return {"sampling": Sampling(float(terms["q"]), int(terms["steps"]), records)}

    def format_terms(self, allowance: AllowanceTerms) -> dict[str, Any]:
        """Return the inverse of `parse_terms`."""
        sampling = allowance.sampling
        assert sampling is not None
        records = {"records": sampling.records} if self.by_record else {}
        return {"q": repr(sampling.probability), "steps": sampling.steps, **records}

    def check_allowance(self, allowance: AllowanceTerms) -> None:
        """A run has a sampling, and Gaussian noise."""
        super().check_allowance(allowance)
        sampling = allowance.sampling
        if sampling is None or (sampling.records is not None) != self.by_record:
            raise PolicyError(f"a run of {self.name} is sampled: allow {self.form}")
        if allowance.ball is not None:
            raise PolicyError(f"ball noise is for statistic:releases=1 only, not for {self.name}")

    def discretization_delta(self, epsilon: float, allowance: AllowanceTerms) -> float:
        """Return that of a draw in every step, exact, or of a language model's, which has an
        end.
        """
        from labelguard.accounting import truncation

        assert allowance.sampling is not None
        steps = allowance.sampling.steps
        beyond = truncation.delta(truncation.MOST_COORDINATES * steps, epsilon)
        return steps * delta_of_bits(epsilon) + beyond

    def reuses_labels(self, state: str) -> bool:
        """Nothing: a run begins with the base model, and learns from all labels."""
        return False

    def noise(self, price: Price) -> dict[str, Any]:
        """Return its noise multiplier, in clip norms, and its sampling."""
        names = ("noise_multiplier", "sampling_probability", "steps")
        return {"noise": "gaussian", **{name: price[name] for name in names}}


class UserWise(TrainingRuns):
    """User-wise DP-SGD (user-level-dp-finetuning, algorithm 2; aup-rlhf, algorithm 4)."""

    name, noun, shortage_noun, run = "uls", "uls run", "uls run", "Subsampled"
    form = "uls:runs=1,q=0.2,steps=100"


class RecordWise(TrainingRuns):
    """Example-level DP-SGD (user-level-dp-finetuning, algorithm 1): the smaller of two bounds."""

    name, noun, shortage_noun, run = "els", "els run", "els run", "SampledRecords"
    form = "els:runs=1,q=0.05,steps=100,records=8"
    by_record = True


class GroupPrivacy(TrainingRuns):
    """The same, at the bound of group privacy alone: a baseline."""

    name, noun, shortage_noun, run = "els-group", "els-group run", "els-group run", "Groups"
    form = "els-group:runs=1,q=0.05,steps=100,records=8"
    by_record = True


class AdaptiveUserWise(TrainingRuns):
    """Adaptive user-level DP-SGD (aup-rlhf, algorithm 2), priced as published: unproven."""

    name, noun, shortage_noun, run = "aup", "aup run", "aup run", "Unproven"
    form = "aup:runs=1,q=0.2,steps=100"
    proven = False


ULS, ELS, ELS_GROUP, AUP = UserWise(), RecordWise(), GroupPrivacy(), AdaptiveUserWise()
TRAINING_RUNS: tuple[TrainingRuns, ...] = (ULS, ELS, ELS_GROUP, AUP)
