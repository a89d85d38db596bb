"""What `props` learns by: its own head on features, or a learner found by entry point."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from labelguard import doors
from labelguard.errors import PolicyError
from labelguard.ingest.pairs import DistinctPairs
from labelguard.learning.features import PairFeatures, open_fitted
from labelguard.learning.learners import (
    GROUP,
    HeadLearner,
    HeadScorer,
    LearnerFactory,
    LearnerOptions,
    PreparedLearner,
    Scorer,
)
from labelguard.mechanisms.geometry import Basis, Shape, basis, spectrum
from labelguard.release.head import Head
from labelguard.release.methods.further import check_identity
from labelguard.release.methods.options import PropsOptions
from labelguard.terms import Progress

HEAD = "head"
_DEFAULT_SHAPE = Shape(components=64, whitening=0.0)


@dataclass(frozen=True)
class HeadOfPairs:
    """A `PreparedLearner`: the linear head on features, in the coordinates of a basis."""

    features: str
    provider: PairFeatures
    shape: Shape
    basis: Basis
    inputs: NDArray[Any]

    @classmethod
    def of(cls, options: PropsOptions, pairs: DistinctPairs, progress: Progress) -> HeadOfPairs:
        """The head that is asked for, with features fitted to the pairs."""
        provider = open_fitted(options.features, pairs.table, progress)
        x = provider(pairs.table)
        shape = Shape(**asdict(_DEFAULT_SHAPE) | options.given())
        axes = basis(spectrum(x), shape)
        return cls(options.features, provider, shape, axes, axes.coordinates(x))

    @property
    def identity(self) -> Mapping[str, Any]:
        """That of the features, and the shape of their coordinates."""
        return {"features": self.provider.identity(), "shape": asdict(self.shape)}

    def open(self, directory: Path, progress: Progress) -> HeadLearner:
        """The learner of heads; it keeps nothing on disk."""
        return HeadLearner(self.shape.ridge)

    def files(self, scorer: Scorer, directory: Path) -> tuple[Path, ...]:
        """None: `further.with_head` publishes `head`."""
        return ()

    def head(self, scorer: HeadScorer) -> Head:
        """The last model as a head that scores other pairs too."""
        return Head(
            self.features,
            self.provider.identity(),
            self.provider.state(),
            self.shape,
            self.basis,
            self.basis.projection @ scorer.theta,
        )


def prepared_learner(
    options: PropsOptions,
    pairs: DistinctPairs,
    progress: Progress,
    recorded: Mapping[str, Any] | None,
) -> PreparedLearner:
    """The learner that is asked for, which must be that of the parameters `recorded`, if any.

    Raises `PolicyError` for an unknown one, `LedgerError` for another than was recorded.
    """
    if options.learner == HEAD:
        found: PreparedLearner = HeadOfPairs.of(options, pairs, progress)
    else:
        asked = LearnerOptions(options.model, options.lora, options.train_config)
        found = _factory(options.learner)(pairs.table, asked)
    if recorded:
        check_identity(options.learner, *differing(recorded["identity"], found.identity))
    return found


def differing(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str]:
    """What two identities say under the keys in which they differ; equal texts if in none."""
    before, now = dict(_flat(recorded)), dict(_flat(found))
    keys = [key for key in sorted(before | now) if before.get(key) != now.get(key)]
    first, second = (
        ", ".join(f"{key} {own.get(key, 'not set')}" for key in keys) for own in (before, now)
    )
    return first, second


def _flat(identity: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """All that an identity says, as JSON, by keys with a dot for every level."""
    for key, value in identity.items():
        if isinstance(value, Mapping) and value:
            yield from ((f"{key}.{inner}", text) for inner, text in _flat(value))
        else:
            yield key, json.dumps(value, sort_keys=True)


def _factory(name: str) -> LearnerFactory:
    door = doors.door(GROUP, name)
    if door is None:
        known = ", ".join(sorted({HEAD, *doors.names(GROUP)}))
        raise PolicyError(f"unknown learner {name!r}; this installation has: {known}")
    try:
        factory: LearnerFactory = door.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise PolicyError(f"learner {name} cannot be loaded: {error}") from None
    return factory
