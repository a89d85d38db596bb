"""The protocol of a job's training step, found by the entry point `labelguard.steps`, and `head`.

The entry point names a callable (options, base) → `Step`, where `options` are those of `train` in
job.yaml and `base` is the directory that relative paths in them refer to. Built-in steps are found
in the same way: `dpo` and `reward` are in the trainer, `head` is here: a linear head on public
features, learned from a release in a moment. A statistic release has its head already; `windows`
fits it on the newest windows alone, so that it follows people who change their minds. From
randomized labels a head is learned by the likelihood of their flips (`learning.heads.fit_flipped`,
forward), on items that are not held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import model_validator

from labelguard import extras
from labelguard.configuration.loader import SettingsTable, setting, validate_settings
from labelguard.errors import LabelguardError
from labelguard.learning.columns import parse_feature_columns
from labelguard.learning.features import PairFeatures, fit_features, open_provider
from labelguard.learning.learners import HeadLearner
from labelguard.learning.providers import check_features, default_features
from labelguard.mechanisms.geometry import Basis, Shape, compute_spectrum
from labelguard.mechanisms.geometry import choose_basis as fit_basis
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.release.card import format_guarantee
from labelguard.release.evaluation import load_coordinates
from labelguard.release.head import FILE, Coordinates, Head, fit, load_windows_of_sum
from labelguard.release.item_keys import PAIRS
from labelguard.release.pairs_file import compute_item_keys, hold_out
from labelguard.release.writer import read_card
from labelguard.storage.buckets import escape_file_names, find_rows_path
from labelguard.storage.files import fresh_directory, publish_directory
from labelguard.text import Progress, no_progress

GROUP = "labelguard.steps"

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingTask:
    """A release to learn a model from, and nothing that holds a raw label.

    `output` appears whole; a call that was killed is repeated, and goes on or begins anew.
    `coordinates` is the directory of the head or evaluation in whose coordinates the model must be
    for its gate; None if any will do.
    """

    release: Path
    project: Project
    output: Path
    progress: Progress
    coordinates: Path | None = None


@dataclass(frozen=True)
class TrainedModel:
    """Public facts of a training, as JSON, and its metrics by step."""

    facts: Mapping[str, Any]
    curve: Sequence[Mapping[str, float]] = field(default=())


class Step(Protocol):
    """One way to learn a model. A function of releases and public data: nothing is charged."""

    @property
    def name(self) -> str:
        """Its name in `labelguard.steps`."""
        ...

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates that can judge its models: released, probes, of heads held-out too."""
        ...

    @property
    def holdout(self) -> float:
        """The share of items that it does not learn from (`release.pairs_file.hold_out`)."""
        ...

    def check(self, mechanism: str, coordinates: Path | None) -> None:
        """Raise `LabelguardError` for a training that would fail, before anything is charged.

        Releases will be made by `mechanism`; `coordinates` are those of a `TrainingTask`.
        """
        ...

    def identity(self) -> Mapping[str, Any]:
        """Return by what it trains, as JSON: equal identities and releases make no new model."""
        ...

    def train(self, task: TrainingTask) -> TrainedModel:
        """Learn a model into `task.output`; one that is there already is taken as it is."""
        ...

    def margins(self, model: Path, pairs: pa.Table) -> NDArray[np.float64]:
        """Return the log-odds that `chosen` is preferred, shape (n,).

        `pairs` have the columns prompt, chosen and rejected.
        """
        ...


def open_step(name: str, options: Mapping[str, Any], base: Path) -> Step:
    """Return the step of that name. Raises `LabelguardError` for one that is not installed, and
    for options that it refuses.
    """
    entry_point = extras.find_entry_point(GROUP, name)
    if entry_point is None:
        available = ", ".join(extras.list_entry_points(GROUP)) or "none"
        raise LabelguardError(f"train.step: there is no {name!r}; available: {available}")
    step: Step = entry_point.load()(options, base)
    return step


def parse_options(kind: type[T], options: Mapping[str, Any]) -> T:
    """Return the options of a step as its model; raise for the first that does not fit."""
    return validate_settings(kind, dict(options), at=("train", "options"))


class HeadOptions(SettingsTable):
    """Options of the step; only `windows` applies to a release that has a head.

    `features`, `components` and `ridge` are those of a head from randomized labels, `holdout` the
    share of items that it does not learn from. `windows`: how many of the newest windows of the
    statistic count; None for all.
    """

    features: str | None = setting(
        "of rr: what the head reads, as with privatize; default: the best installed"
    )
    components: int = setting("of rr: principal components of the features to use", 64)
    ridge: float = setting("of rr: penalty of the head, in labels", 3.0)
    holdout: float = setting("share of the items that the head does not learn from", 0.1)
    windows: int | None = setting(
        "of statistic: how many of the newest windows count; default: all"
    )

    @model_validator(mode="after")
    def _check_option_ranges(self) -> Self:
        Shape(components=self.components, ridge=self.ridge)
        if not 0 <= self.holdout < 1:
            raise LabelguardError(f"train.options.holdout must be in [0, 1), found {self.holdout}")
        if self.windows is not None and self.windows < 1:
            raise LabelguardError(f"train.options.windows must be at least 1, found {self.windows}")
        return self


class HeadStep:
    """The step that learns a linear head."""

    name = "head"
    gates = ("released", "probes", "held-out")

    def __init__(self, options: Mapping[str, Any], base: Path) -> None:
        self.options = parse_options(HeadOptions, options)
        self.holdout = self.options.holdout

    @property
    def _feature_spec(self) -> str:
        return self.options.features or default_features()

    def identity(self) -> Mapping[str, Any]:
        """Return all options, with the default features where none are named."""
        return self.options.model_dump() | {"features": self._feature_spec}

    def check(self, mechanism: str, coordinates: Path | None) -> None:
        """Raise `LabelguardError` for features that cannot be computed here, that releases do not
        have, or that are not those of the gate.
        """
        check_features(self._feature_spec)
        if mechanism != "rr":  # its releases have heads, or teach none
            return
        if parse_feature_columns(self._feature_spec):
            raise LabelguardError(
                f"train.options.features: {self._feature_spec}: rows released by rr have texts, "
                "not these columns; use features of texts, or mechanism statistic"
            )
        if coordinates is None:
            open_provider(self._feature_spec)
        else:
            self._load_gate_coordinates(coordinates).load_provider(no_progress)

    def train(self, task: TrainingTask) -> TrainedModel:
        """Write head.npz and a card. Raises `LabelguardError` for labels that teach no head."""
        card = read_card(task.release)
        if (task.release / FILE).exists():
            head, facts = self._take_released_head(task, card)
        elif card.get("train_with") == "forward":
            head, facts = self._fit_flipped_labels(task)
        else:
            raise LabelguardError(
                f"no head can be learned from release {card['release']}: it has none, and no row "
                "with a flip_probability; release by rr or statistic"
            )
        file, content = task.output / FILE, head.to_bytes()
        if not file.is_file() or file.read_bytes() != content:
            partial = fresh_directory(task.output.with_name(f"{task.output.name}.partial"))
            (partial / FILE).write_bytes(content)
            (partial / "TRAINING_CARD.md").write_text(
                _format_head_card(card, facts), encoding="utf-8"
            )
            publish_directory(partial, task.output)
        return TrainedModel(facts)

    def margins(self, model: Path, pairs: pa.Table) -> NDArray[np.float64]:
        """See `Head.predict_log_odds`. Raises `LabelguardError` for features that changed since."""
        head = Head.load(model)
        return head.predict_log_odds(head.load_provider(no_progress)(_put_chosen_first(pairs)))

    def _take_released_head(
        self, task: TrainingTask, card: Mapping[str, Any]
    ) -> tuple[Head, dict[str, Any]]:
        """Return the head of a release, fitted anew if only some windows count, and its facts."""
        head, most = Head.load(task.release), self.options.windows
        facts = {"features": head.features, "components": len(head.basis.metric)}
        if "statistic" not in card:
            return head, facts
        records = OpenProject.open(task.project).ledger.releases.list_committed()
        [record] = [one for one in records if one.id == card["release"]]
        first = record.settings["parameters"]["first"] or record.id
        until = [one for one in records if one.number <= record.number]
        windows = list(load_windows_of_sum(task.project.private_maps, first, until))
        windows = windows[-most:] if most else windows
        coefficients, total, noise = fit(windows, head.basis, head.shape)
        head = replace(
            head,
            # Of fewer windows the scale is taken to be that of all of them.
            coefficients=head.scale * coefficients,
            statistic=total,
            noise=noise,
        )
        return head, facts | {"windows": len(windows)}

    def _fit_flipped_labels(self, task: TrainingTask) -> tuple[Head, dict[str, Any]]:
        """Return a head learned from flipped labels, and its facts."""
        file = find_rows_path(task.release)
        rows = pl.read_parquet(escape_file_names(file))
        is_out = hold_out(compute_item_keys(file), self.holdout)
        rows = rows.filter(pl.Series(~is_out) & pl.col("flip_probability").is_not_null())
        if not len(rows):
            raise LabelguardError(f"{file} has no row to learn a head from")
        pairs = _put_chosen_first(rows.select(PAIRS).to_arrow())
        provider, basis, shape = self._choose_coordinates(pairs, task)
        z = basis.coordinates(provider(pairs))
        flips = rows["flip_probability"].to_numpy()
        task.progress("fitting the head", None)
        try:
            scorer = HeadLearner(shape.ridge).fit(z, np.ones(len(z)), flips, None)
        except (ValueError, ArithmeticError) as error:
            raise LabelguardError(
                f"the head cannot be fitted ({error}); try another train.options.ridge"
            ) from None
        coefficients = basis.projection @ scorer.theta
        state = provider.state()
        head = Head(self._feature_spec, provider.identity(), state, shape, basis, coefficients)
        return head, {
            "features": head.features,
            "components": len(basis.metric),
            "rows": len(rows),
            "rows_held_out": int(is_out.sum()),
        }

    def _choose_coordinates(
        self, pairs: pa.Table, task: TrainingTask
    ) -> tuple[PairFeatures, Basis, Shape]:
        """Return features and principal axes: those of the gate, or axes fitted on these pairs."""
        if task.coordinates:
            coordinates = self._load_gate_coordinates(task.coordinates)
            shape = replace(coordinates.shape, ridge=self.options.ridge)
            return coordinates.load_provider(task.progress), coordinates.basis, shape
        shape = Shape(self.options.components, 0, ridge=self.options.ridge)
        provider, x = fit_features(self._feature_spec, pairs, task.progress)
        return provider, fit_basis(compute_spectrum(x), shape), shape

    def _load_gate_coordinates(self, directory: Path) -> Coordinates:
        """Return the coordinates of a directory; raise where the options ask for others."""
        coordinates, components = load_coordinates(directory), self.options.components
        names = coordinates.features, coordinates.shape.components
        if names != (self._feature_spec, components):
            raise LabelguardError(
                f"train.options: features {self._feature_spec} in {components} components, and the "
                f"gate judges in the coordinates of {directory.name}, {names[0]} in "
                f"{names[1]}: use these, use another gate, or restart evaluations "
                "(labelguard privatize --mechanism evaluation --again --head DIRECTORY)"
            )
        return coordinates


def _put_chosen_first(pairs: pa.Table) -> pa.Table:
    """Return preferred pairs as features read them: the chosen side is the first."""
    return pa.table([pairs[name] for name in PAIRS], names=["prompt", "first", "second"])


def _format_head_card(card: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the card of a head: its training and the guarantee that it keeps."""
    rows = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in facts.items())
    return f"""\
# Linear head of release {card["release"]}

A function of the release and of public pairs: it reveals no more than the release does.

{format_guarantee(card)}

| | |
|---|---|
{rows}
"""
