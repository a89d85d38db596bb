"""The step `head`: a linear head on public features, learned from a release in a moment.

A statistic release has its head already; `windows` fits it on the newest windows alone, so that it
follows people who change their minds. From randomized labels a head is learned by the likelihood of
their flips (`learning.heads.fit_flipped`, forward), on items that are not held out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from labelguard.errors import LabelguardError
from labelguard.jobs.steps import Learned, Lesson, validated
from labelguard.learning.columns import column_features
from labelguard.learning.features import (
    PairFeatures,
    check_features,
    default_features,
    open_fitted,
    open_provider,
)
from labelguard.learning.learners import HeadLearner
from labelguard.mechanisms.geometry import Basis, Shape, basis, spectrum
from labelguard.project.opening import OpenProject
from labelguard.release.card import guarantee
from labelguard.release.evaluation import coordinates_in
from labelguard.release.head import FILE, Coordinates, Head, Window, fit, windows_of
from labelguard.release.pairs_file import PAIRS, hold_out, item_keys
from labelguard.release.writer import read_card
from labelguard.storage.files import fresh_directory, publish_directory
from labelguard.text import no_progress

__all__ = ["HeadOptions", "HeadStep"]


@dataclass(frozen=True)
class HeadOptions:
    """What a job says of its head. Of a release that has one, only `windows` can be said.

    `features`, `components` and `ridge` are those of a head from randomized labels, `holdout` the
    share of items that it does not learn from. `windows`: how many of the newest windows of the
    statistic count; None for all.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    features: Annotated[
        str | None,
        Field(
            description="of rr: what the head reads, as with privatize; default: the best installed"
        ),
    ] = None
    components: Annotated[
        int, Field(description="of rr: principal components of the features to use")
    ] = 64
    ridge: Annotated[float, Field(description="of rr: penalty of the head, in labels")] = 3.0
    holdout: Annotated[
        float, Field(description="share of the items that the head does not learn from")
    ] = 0.1
    windows: Annotated[
        int | None,
        Field(description="of statistic: how many of the newest windows count; default: all"),
    ] = None

    def __post_init__(self) -> None:
        Shape(components=self.components, ridge=self.ridge)
        if not 0 <= self.holdout < 1:
            raise LabelguardError(f"train.options.holdout must be in [0, 1), found {self.holdout}")
        if self.windows is not None and self.windows < 1:
            raise LabelguardError(f"train.options.windows must be at least 1, found {self.windows}")


class HeadStep:
    """See the module."""

    name = "head"
    gates = ("released", "probes", "held-out")

    def __init__(self, options: Mapping[str, Any], base: Path) -> None:
        self.options = validated(HeadOptions, options)
        self.holdout = self.options.holdout

    def check(self, mechanism: str, coordinates: Path | None) -> None:
        """Features that cannot be computed here, or of what releases do not have, or are not those
        that a gate asks for.
        """
        check_features(self._features)
        if mechanism != "rr":  # its releases have heads, or teach none
            return
        if column_features(self._features):
            raise LabelguardError(
                f"train.options.features: {self._features}: rows that rr releases have texts, and "
                "no such columns; take features of texts, or mechanism statistic"
            )
        if coordinates is None:
            open_provider(self._features)
        else:
            self._asked(coordinates).provider(no_progress)

    def identity(self) -> Mapping[str, Any]:
        """All options, and the features that are meant where none were named."""
        return asdict(self.options) | {"features": self._features}

    @property
    def _features(self) -> str:
        return self.options.features or default_features()

    def train(self, lesson: Lesson) -> Learned:
        """Write head.npz and a card. Raises `LabelguardError` for labels that teach no head."""
        card = read_card(lesson.release)
        if (lesson.release / FILE).exists():
            head, facts = self._released(lesson, card)
        elif card.get("train_with") == "forward":
            head, facts = self._learned(lesson)
        else:
            raise LabelguardError(
                f"no head can be learned from release {card['release']}: it has none, and no row "
                "with a flip_probability; release by rr or statistic"
            )
        file, content = lesson.output / FILE, head.to_bytes()
        if not file.is_file() or file.read_bytes() != content:
            partial = fresh_directory(lesson.output.with_name(f"{lesson.output.name}.partial"))
            (partial / FILE).write_bytes(content)
            (partial / "TRAINING_CARD.md").write_text(_card(card, facts), encoding="utf-8")
            publish_directory(partial, lesson.output)
        return Learned(facts)

    def margins(self, model: Path, pairs: pa.Table) -> NDArray[np.float64]:
        """As `Head.margins`. Raises `LabelguardError` for features that changed since."""
        head = Head.load(model)
        return head.margins(head.provider(no_progress)(_sides(pairs)))

    def _released(self, lesson: Lesson, card: Mapping[str, Any]) -> tuple[Head, dict[str, Any]]:
        """The head that came with a release, fitted anew if only some windows count."""
        head, wanted = Head.load(lesson.release), self.options.windows
        facts = {"features": head.features, "components": len(head.basis.metric)}
        if "statistic" not in card:
            return head, facts
        windows = self._windows(lesson, card["release"])
        windows = windows[-wanted:] if wanted else windows
        coefficients, total, noise = fit(windows, head.basis, head.shape)
        about = None if wanted else head.summary  # it tells of all windows
        # Of fewer windows the scale is taken to be that of all of them.
        scaled = head.scale * coefficients
        head = replace(head, coefficients=scaled, statistic=total, noise=noise, summary=about)
        return head, facts | {"windows": len(windows)}

    def _windows(self, lesson: Lesson, release: str) -> list[Window]:
        """Those of the sum that a release belongs to, up to its own."""
        records = OpenProject.open(lesson.project).ledger.releases.all()
        [own] = [record for record in records if record.id == release]
        first = own.settings["parameters"]["first"] or own.id
        until = [r for r in records if r.state == "committed" and r.number <= own.number]
        return list(windows_of(lesson.project.released, first, until))

    def _learned(self, lesson: Lesson) -> tuple[Head, dict[str, Any]]:
        """A head of flipped labels, in the coordinates that the lesson asks for, or in those of the
        model in use if it has the same features.
        """
        file = lesson.release / "data.parquet"
        rows = pl.read_parquet(file)
        out = hold_out(item_keys(file), self.holdout)
        kept = rows.filter(pl.Series(~out) & pl.col("flip_probability").is_not_null())
        if not len(kept):
            raise LabelguardError(f"{file} has no row to learn a head from")
        pairs = _sides(kept.select(PAIRS).to_arrow())
        provider, coordinates, shape = self._coordinates(pairs, lesson)
        z = coordinates.coordinates(provider(pairs))
        flips = kept["flip_probability"].to_numpy()
        lesson.progress("fitting the head", None)
        try:
            scorer = HeadLearner(shape.ridge).fit(z, np.ones(len(z)), flips, None)
        except (ValueError, ArithmeticError) as error:
            raise LabelguardError(
                f"the head cannot be fitted ({error}); take another train.options.ridge"
            ) from None
        head = Head(
            self._features,
            provider.identity(),
            provider.state(),
            shape,
            coordinates,
            coordinates.projection @ scorer.theta,
        )
        return head, {
            "features": head.features,
            "components": len(coordinates.metric),
            "rows": len(kept),
            "rows_held_out": int(out.sum()),
        }

    def _coordinates(self, pairs: pa.Table, lesson: Lesson) -> tuple[PairFeatures, Basis, Shape]:
        """Features and principal axes: those that are asked for, those of the model in use, or
        fitted on these pairs.
        """
        shape = Shape(self.options.components, 0, ridge=self.options.ridge)
        found = self._asked(lesson.coordinates) if lesson.coordinates else self._kept(lesson, shape)
        if found:
            own = replace(found.shape, ridge=shape.ridge)
            return found.provider(lesson.progress), found.basis, own
        provider = open_fitted(self._features, pairs, lesson.progress)
        return provider, basis(spectrum(provider(pairs)), shape), shape

    def _asked(self, directory: Path) -> Coordinates:
        """Those of a directory. Raises `LabelguardError` where the options ask for others."""
        found, components = coordinates_in(directory), self.options.components
        if (found.features, found.shape.components) != (self._features, components):
            raise LabelguardError(
                f"train.options: features {self._features} in {components} components, and the "
                f"gate judges in the coordinates of {directory.name}, {found.features} in "
                f"{found.shape.components}: take these, or another gate, or begin evaluations anew "
                "(labelguard privatize --mechanism evaluation --again --head DIRECTORY)"
            )
        return found

    def _kept(self, lesson: Lesson, shape: Shape) -> Coordinates | None:
        """Those of the model in use, if it has these features; the ridge is none of them."""
        if lesson.previous is None or not (lesson.previous / FILE).exists():
            return None
        found: Coordinates = Head.load(lesson.previous)
        alike = (found.features, replace(found.shape, ridge=shape.ridge)) == (self._features, shape)
        return found if alike else None


def _sides(pairs: pa.Table) -> pa.Table:
    """Preferred pairs as features take them: the chosen side is the first."""
    return pa.table([pairs[name] for name in PAIRS], names=["prompt", "first", "second"])


def _card(card: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """What the head learned from, and the guarantee that it carries on."""
    rows = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in facts.items())
    return f"""\
# Linear head of release {card["release"]}

A function of the release and of public pairs: whoever has it learns no more than the release tells.

{guarantee(card)}

| | |
|---|---|
{rows}
"""
