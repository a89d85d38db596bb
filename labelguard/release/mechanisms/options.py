"""The options of each mechanism, beside those that all share (`labelguard.options`).

A package adds one by an entry point in the group
`labelguard.mechanisms`: a frozen dataclass, `Options`, whose fields are made by
`labelguard.options.option` and have types that exist at run time. It is loaded for `labelguard
privatize --help` already, so that it only names what is heavy. Options of one name are one option
of the command.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from labelguard.errors import PolicyError
from labelguard.options import option
from labelguard.text import AGREEMENT_HELP


class Options(Protocol):
    """A frozen dataclass of options; it refuses values out of range when it is made.

    `mechanism` names, as `module:attribute`, a callable (options) → `Mechanism`. So may `report` a
    function that makes a card's own sections, (card) → `release.sections.Section`s.
    """

    mechanism: ClassVar[str]


def _find_default_features() -> str:
    from labelguard.learning.providers import default_features

    return default_features()


@dataclass(frozen=True)
class RandomizedResponseOptions:
    """`rr` has none."""

    mechanism: ClassVar[str] = "labelguard.release.mechanisms.rr:RandomizedResponse"
    report: ClassVar[str] = "labelguard.release.mechanisms.reports:describe_randomized"


@dataclass(frozen=True)
class FeatureOptions:
    """Options of mechanisms that fit a head; what is None is chosen by the mechanism.

    `also` are further pairs without labels, which the head labels too.
    """

    features: str = option(
        "length, style, minilm, hf:ID_OR_PATH, text, source:COLUMN, verdict:NAME, "
        "reward:ID_OR_PATH, columns:a,b, or a sum of these; default: those of the project's last "
        "release, or the best installed, length+style+minilm or length+style+text.",
        default_factory=_find_default_features,
        metavar="SPEC",
    )
    components: int | None = option("Principal components of the features to use.")
    ridge: float | None = option("Penalty of the head, in labels.")
    agreement: float | None = option(
        f"{AGREEMENT_HELP}; default: what released labels of rr say, else any from .6 to .85."
    )
    also: Any = option("Label these further pairs too.", metavar="FILE")

    def __post_init__(self) -> None:
        if self.agreement is not None and not 0.55 <= self.agreement <= 0.9:
            raise PolicyError(f"agreement must be in [0.55, 0.9], found {self.agreement}")
        from labelguard.mechanisms.geometry import Shape

        Shape(**self.collect_shape_options())

    def collect_shape_options(self) -> dict[str, Any]:
        """Return the parts of a `Shape` that are fixed by the request."""
        values = {name: getattr(self, name, None) for name in _SHAPE}
        return {name: value for name, value in values.items() if value is not None}

    def settings(self) -> dict[str, Any]:
        """Return what enters the idempotency key, where further pairs have their own digest."""
        settings = {"features": self.features, "agreement": self.agreement}
        return settings | self.collect_shape_options()


@dataclass(frozen=True)
class EvaluationOptions:
    """`evaluation`: one statistic of the labelers who are held out, by which heads are judged."""

    mechanism: ClassVar[str] = "labelguard.release.evaluation:HeldOut"
    report: ClassVar[str] = "labelguard.release.mechanisms.reports:describe_evaluation"

    head: str | Path | None = option(
        "Head that sets the coordinates for judging: a release, or a directory with head.npz; "
        "default: as in the project's last evaluation.",
        metavar="RELEASE",
    )


_SHAPE = ("components", "whitening", "floor", "clip_quantile", "ridge")


@dataclass(frozen=True)
class StatisticOptions(FeatureOptions):
    """Options of `statistic`; what is None is chosen by simulation on public data."""

    mechanism: ClassVar[str] = "labelguard.release.mechanisms.statistic:Teacher"
    report: ClassVar[str] = "labelguard.release.mechanisms.reports:describe_statistic"

    whitening: float | None = option(
        "How far the components are evened out.", choices=("0", "0.25", "0.5")
    )
    floor: float | None = option("Floor of the whitening, above 0.")
    clip_quantile: float | None = option("Clip at this quantile of labelers' norms without signal.")


@dataclass(frozen=True)
class LearningOptions(FeatureOptions):
    """Options of mechanisms by which a model learns: the linear head on features, or another one.

    `reward` and `dpo` train language models; more may be found by entry point.
    """

    learner: str = option(
        "The learner; default head, a linear head on the features.", default="head"
    )
    model: str | None = option(
        "Base model of the learner, a hub id or a path.", metavar="ID_OR_PATH"
    )
    lora: str | None = option("Train low-rank adapters, for example r=16,alpha=32.", metavar="SPEC")
    train_config: str | Path | None = option(
        "YAML file with settings of the learner's training.", metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        head = self.learner == "head"
        for name in _OF_OTHER_LEARNERS if head else _OF_HEADS:
            if getattr(self, name) is not None:
                learners = "another learner than head" if head else "--learner head"
                raise PolicyError(f"--{name.replace('_', '-')} goes with {learners} only")

    def settings(self) -> dict[str, Any]:
        """Return what enters the idempotency key: features are of the head alone.

        A file of settings counts by its content.
        """
        settings: dict[str, Any] = {"learner": self.learner}
        if self.learner == "head":
            return super().settings() | settings
        if self.train_config is not None:
            settings["train_config"] = _hash_file(self.train_config)
        values = {name: getattr(self, name) for name in ("model", "lora")}
        return settings | {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class PropsOptions(LearningOptions):
    """PROPS in `stages` stages, combining votes `hard` or `soft`, with a learner."""

    mechanism: ClassVar[str] = "labelguard.release.mechanisms.props:Relabelling"
    report: ClassVar[str] = "labelguard.release.mechanisms.reports:describe_props"

    stages: int = option("Number of stages; default 2.", default=2, least=2)
    combine: Literal["hard", "soft"] = option(
        "Votes decide (hard, default) or probabilities are combined (soft).", default="hard"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learner != "head" and self.also is not None:
            raise PolicyError("--also goes with --learner head only")

    def settings(self) -> dict[str, Any]:
        """Return what enters the idempotency key, with stages and combination."""
        return super().settings() | {"stages": self.stages, "combine": self.combine}


_OF_HEADS = ("components", "ridge")
_OF_OTHER_LEARNERS = ("model", "lora", "train_config")


def _hash_file(path: str | Path) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise PolicyError(f"--train-config {path} cannot be read: {error.strerror}") from None
