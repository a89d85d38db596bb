"""Options of gradient mechanisms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from labelguard.budget.event_kind import Sampling
from labelguard.budget.events import AUP, ELS, ELS_GROUP, ULS, TrainingRuns
from labelguard.errors import PolicyError
from labelguard.options import option
from labelguard.release.mechanisms.options import LearningOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Weight of each of a labeler's m labels in a step: 1/m each, or 1/√m.
Weighting = Literal["mean", "root"]

_STEPS = 100
_PROBABILITY = 0.2
_DISTANCE = 2.0  # of aup, in clip norms: mean gradients of random labels are √2 norms apart
_MOST_DISTANT = 1e3
_COHORT = 64  # labelers in a step of a language model, each of whom costs a backward pass


@dataclass(frozen=True)
class GradientOptions(LearningOptions):
    """Options of every gradient mechanism.

    The sampling belongs to the policy: what is asked for at a project's first release is fixed then
    and for good.
    """

    mechanism: ClassVar[str] = "labelguard_trainer.gradient.mechanism:GradientMechanism"
    report: ClassVar[str] = "labelguard_trainer.gradient.mechanism:sections"
    kind: ClassVar[TrainingRuns]
    weighting: ClassVar[Weighting] = "mean"

    sampling_probability: float | None = option(
        "Probability with which a labeler (uls, aup) or a label (els) is in a step; fixed with "
        "the policy."
    )
    steps: int | None = option("Steps of a run; fixed with the policy.")

    def __post_init__(self) -> None:
        super().__post_init__()
        learners = ("head", "reward", "dpo")
        if self.learner not in learners:
            raise PolicyError(f"learner must be {' or '.join(learners)}, found {self.learner!r}")
        import numpy as np

        self.sampling(np.ones(1, np.int64))

    def sampling(self, counts: NDArray[np.int64]) -> Sampling:
        """Return what a first policy fixes, for units with so many labels each, (units,):
        public.
        """
        usual = _PROBABILITY
        if self.learner != "head":
            usual = float(f"{min(1.0, _COHORT / max(len(counts), 1)):.2g}")
        probability = self.sampling_probability
        steps = _STEPS if self.steps is None else self.steps
        return Sampling(usual if probability is None else probability, steps)

    def check_sampling_matches_policy(self, sampling: Sampling) -> None:
        """Raise `PolicyError` where another sampling was asked for than the policy has."""
        fixed = {"sampling_probability": sampling.probability, "steps": sampling.steps}
        for name, has in {**fixed, "records": sampling.records}.items():
            value = getattr(self, name, None)
            if value is not None and value != has:
                raise PolicyError(
                    f"this project's policy has --{name.replace('_', '-')} = {has:g}, fixed when "
                    f"it was made; requested: {value:g}; leave it out or use another project"
                )


@dataclass(frozen=True)
class UlsOptions(GradientOptions):
    """`uls`: user-wise DP-SGD."""

    kind: ClassVar[TrainingRuns] = ULS

    weighting: Weighting = option(  # type: ignore[misc]
        "What m labels of a labeler weigh in a step: 1/m each (mean), or 1/√m (root, default).",
        default="root",
    )

    def settings(self) -> dict[str, Any]:
        """With the weighting."""
        return super().settings() | {"weighting": self.weighting}


@dataclass(frozen=True)
class ElsOptions(GradientOptions):
    """`els`: example-level DP-SGD with a bound on a labeler's labels, priced for labelers."""

    kind: ClassVar[TrainingRuns] = ELS

    records: int | None = option(
        "Labels of each labeler that are in a run at most; fixed with the policy; default: the "
        "median of what labelers have, at most 1,024."
    )

    def sampling(self, counts: NDArray[np.int64]) -> Sampling:
        """With the bound on labels: the median of public counts (user-level-dp-finetuning, 6)."""
        import numpy as np

        from labelguard.accounting.mixture import MOST_RECORDS

        sampling = super().sampling(counts)
        labelers = counts[counts > 0]
        usual = int(np.median(labelers)) if len(labelers) else 1
        records = min(max(usual, 1), MOST_RECORDS) if self.records is None else self.records
        return Sampling(sampling.probability, sampling.steps, records)


@dataclass(frozen=True)
class ElsGroupOptions(ElsOptions):
    """`els-group`: the same, priced by group privacy; a baseline."""

    kind: ClassVar[TrainingRuns] = ELS_GROUP


@dataclass(frozen=True)
class AupOptions(GradientOptions):
    """`aup`: adaptive user-level DP-SGD, whose guarantee is as published and not proven."""

    kind: ClassVar[TrainingRuns] = AUP

    concentration: float | None = option(
        "Distance τ within which mean gradients of labelers are expected to lie, in clip norms "
        f"of uls; default {_DISTANCE:g}."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.concentration is not None and not 0 < self.concentration <= _MOST_DISTANT:
            raise PolicyError(
                f"concentration must be above 0 and at most {_MOST_DISTANT:g}, found "
                f"{self.concentration}"
            )

    @property
    def distance(self) -> float:
        """τ, in clip norms."""
        return _DISTANCE if self.concentration is None else self.concentration

    def settings(self) -> dict[str, Any]:
        """With τ, where it was asked for."""
        own = {} if self.concentration is None else {"concentration": self.concentration}
        return super().settings() | own
