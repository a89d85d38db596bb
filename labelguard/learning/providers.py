"""One part of a specification of features: its interface, and how it is found.

A package adds a provider by an entry point in the group `labelguard.features`: a callable
(options, state) → `FeatureProvider`, where `options` is the text after the colon and `state` what
an earlier provider's `state()` returned, or None. A provider whose numbers have names says them in
a method `names()`. Neither `+` nor `,` can be part of an option.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.storage.buckets import take_rows
from labelguard.text import DEFAULT_FEATURES, Progress, suggest

GROUP = "labelguard.features"

Features: TypeAlias = NDArray[np.float32]
State: TypeAlias = Mapping[str, NDArray[Any]]

# Of more pairs a part that learns from texts sees so many, evenly spaced.
FITTED_PAIRS = 1 << 16


class FeatureProvider(Protocol):
    """A public function of pairs.

    `pairs` has columns `prompt`, `first` and `second`, all text or all chats (lists of structs with
    `role` and `content`), and possibly numeric difference columns `feature_<name>`. The features of
    a pair depend on no other: some pairs are given at a time, and, unless the provider has an
    attribute `workers`, an engine's workers open it from its state, where its package has to be.
    """

    def fit(self, pairs: pa.Table) -> None:
        """Learn from public pairs; most providers learn nothing."""

    def __call__(self, pairs: pa.Table) -> Features:
        """Return φ(prompt, first) − φ(prompt, second) of every pair: shape (n, d), float32."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays needed to compute the same features later; often none."""

    def identity(self) -> str:
        """Return a stable text that names the function: encoder, digest of weights, settings."""


class Stateless:
    """A provider that learns nothing, without state."""

    def fit(self, pairs: pa.Table) -> None:
        pass

    def state(self) -> dict[str, NDArray[Any]]:
        return {}


class FittedProvider:
    """A provider without options, with named `arrays` that it learns from public pairs."""

    name: ClassVar[str]
    arrays: ClassVar[frozenset[str]]

    def __init__(self, state: State | None = None, progress: Progress | None = None) -> None:
        if state is not None and set(state) != self.arrays:
            raise LabelguardError(
                f"expected a state of {sorted(self.arrays)}, found {sorted(state)}"
            )
        self.progress = progress
        self._state = dict(state or {})

    @property
    def fitted_state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays; raises `LabelguardError` before `fit`."""
        if not self._state:
            raise LabelguardError(f"features {self.name} must be fitted on public pairs before use")
        return self._state

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays; {} before `fit`."""
        return dict(self._state)


def sample_pairs(pairs: pa.Table) -> pa.Table:
    """Return at most `FITTED_PAIRS` of the pairs, evenly spaced.

    The distinct pairs of an input are in the order of a digest, so that these are a random sample.
    """
    if pairs.num_rows <= FITTED_PAIRS:
        return pairs
    return take_rows(pairs, np.arange(FITTED_PAIRS) * pairs.num_rows // FITTED_PAIRS)


def refuse_options(name: str, options: str) -> None:
    """Raise `LabelguardError` for options of a provider that has none."""
    if options:
        raise LabelguardError(f"features {name} take no options, found {options}")


def open_part(part: str, state: State | None = None) -> FeatureProvider:
    """Return the provider of one part of a specification, not scaled; raises as `open_provider`."""
    name, _, options = part.partition(":")
    return cast(FeatureProvider, find_factory(name)(options, state))


def find_factory(name: str) -> Any:
    """Return what opens the provider of this name; raises as `features.open_provider`."""
    door = extras.find_entry_point(GROUP, name)
    if door is None:
        known = extras.list_entry_points(GROUP)
        raise LabelguardError(
            f"there are no features {name!r}{suggest(name, known)}; "
            f"available: {', '.join(known) or 'none'}"
        )
    try:
        return door.load()
    except ImportError as error:
        raise extras.MissingExtra(f"features {name} cannot be loaded: {error}") from None


def default_features() -> str:
    """Return the best features that this installation can compute.

    A project without a specification takes them at its first release and keeps them.
    """
    return "length+style+text" if extras.list_missing_packages("encoders") else DEFAULT_FEATURES


def check_features(spec: str) -> None:
    """Raise what `open_provider` would for features that cannot be computed here, opening none.

    A provider that needs an extra has its name in the attribute `extra`.
    """
    for part in spec.split("+"):
        name = part.strip().partition(":")[0]
        if extra := getattr(find_factory(name), "extra", None):
            extras.require_extra(extra, f"features {name}")


def select_part_state(state: State, number: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of one part of a state of several."""
    prefix = f"{number}."
    return {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }


def digest_state(state: State) -> str:
    """Return the SHA-256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = np.asarray(state[name])
        digest.update(f"{len(name)}:{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
