"""`--mechanism props`: randomized response, bettered in stages by models of earlier stages.

Labels are drawn and charged as in `rr`; all that follows sees released labels only and costs
nothing. Stages are saved on disk, so that a run that was interrupted goes on where it stood.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import extras
from labelguard.accounting.blocks import find_block
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.errors import LabelguardError, PolicyError
from labelguard.inputs.pairs import DistinctPairs, find_distinct_pairs
from labelguard.learning.columns import parse_feature_columns
from labelguard.learning.features import PairFeatures, fit_features
from labelguard.learning.learners import (
    GROUP,
    HeadLearner,
    HeadScorer,
    LearnerFactory,
    LearnerOptions,
    PreparedLearner,
    Scorer,
)
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import props
from labelguard.mechanisms import props_stages as relabelling
from labelguard.mechanisms.geometry import Basis, Shape, choose_basis, compute_spectrum
from labelguard.mechanisms.props_stages import ReleasedLabels, StageReport, StageResult
from labelguard.mechanisms.randomized_response import compute_largest_eigenvalue
from labelguard.release.head import Head
from labelguard.release.mechanisms.options import PropsOptions
from labelguard.release.mechanisms.rr import build_randomized_card, draw_labels
from labelguard.release.mechanisms.statistic_design import add_head_and_labels, check_identity
from labelguard.release.protocol import (
    Finished,
    Mechanism,
    Prepared,
    ReleaseContext,
    TrainingInputs,
)
from labelguard.release.selection import PlannedRows
from labelguard.storage import blocks, buckets, portions
from labelguard.storage.files import fresh_directory, write_atomically
from labelguard.text import Progress

_FOLDS = 5
_LAW = ("threshold", "block_labels")


@dataclass(frozen=True)
class LearnedStages:
    """The released rows, what became of them in every stage, and what is published beside them."""

    rows: _RowsByItem
    results: tuple[StageResult, ...]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class PreparedStages(Prepared):
    """Public pairs, what learns of them and, in the end, what it learned."""

    pairs: DistinctPairs
    learner: PreparedLearner
    learned: LearnedStages | None = None

    def renumber(self, rows: NDArray[np.intp]) -> Self:
        """Return the same with the pairs of those rows."""
        return replace(self, pairs=self.pairs.renumber(rows))


class Relabelling(Mechanism[PreparedStages]):
    """PROPS; `labelguard.mechanisms.props` has its mathematics."""

    name = "props"
    version = 1
    priced = RANDOMIZED_LABELS.name

    def __init__(self, options: PropsOptions) -> None:
        self.options = options
        self.also = options.also
        if options.learner == HEAD:
            self.features = parse_feature_columns(options.features)

    def settings(self) -> dict[str, Any]:
        """Return what enters the idempotency key."""
        return self.options.settings()

    def prepare(
        self, context: ReleaseContext, plan: PlannedRows, recorded: Mapping[str, Any] | None
    ) -> PreparedStages:
        """Prepare features of the public pairs, or whatever the learner takes of them."""
        if not plan.rows:
            raise PolicyError("no label is left to release: all labelers are exhausted")
        pairs = find_distinct_pairs(context.staged, context.executor)
        learner = prepare_learner(self.options, pairs, context, recorded)
        parameters = {"learner": self.options.learner, "identity": dict(learner.identity)}
        # A head is a matter of seconds; whatever else learns may need the night.
        long_running = self.options.learner != HEAD
        return PreparedStages(plan, parameters, pairs, learner, long_running=long_running)

    def draw(
        self, context: ReleaseContext, prepared: PreparedStages, grant: Grant, map_path: Path | None
    ) -> None:
        """Draw as `rr` does."""
        draw_labels(context, prepared, grant, map_path, with_units=True)

    def learn(self, inputs: TrainingInputs, prepared: PreparedStages) -> PreparedStages:
        """Relabel the released rows, stage by stage."""
        rows = _RowsByItem.read(inputs.outcomes, inputs.buckets)
        labels = rows.labels(prepared.pairs, self.options.stages)
        results = self._run_or_resume_stages(inputs, prepared, labels)
        public = fresh_directory(inputs.directory / "public", mode=0o700)
        files = prepared.learner.files(results[-1].scorer, public)
        return replace(prepared, learned=LearnedStages(rows, tuple(results), files))

    def finish(self, context: ReleaseContext, prepared: PreparedStages, grant: Grant) -> Finished:
        """Return rows with the labels of the stages, and the public files of the last model."""
        learned, learner = prepared.learned, prepared.learner
        assert learned is not None
        target, residual = relabelling.join_stages(learned.results)
        relabelled = context.opened.project.work / "relabelled"
        learned.rows.write(relabelled, target, residual, soft=self.options.combine == "soft")
        card = build_randomized_card(context) | self._build_card(prepared, learned)
        finished = Finished(card, ((context.staged, relabelled),), files=learned.files)
        scorer = learned.results[-1].scorer
        if not isinstance(learner, HeadOfPairs) or not isinstance(scorer, HeadScorer):
            return finished
        return add_head_and_labels(
            finished, context, learner.head(scorer), learner.provider, prepared.pairs
        )

    def _run_or_resume_stages(
        self, inputs: TrainingInputs, prepared: PreparedStages, labels: ReleasedLabels
    ) -> list[StageResult]:
        """Return all stages; those that an interrupted run finished are taken from disk."""
        directory, count = inputs.directory, self.options.stages
        models = directory / "models"
        models.mkdir(exist_ok=True, mode=0o700)
        saved = [portions.load_arrays(path) for path in _list_finished_stages(directory, count)]
        stages = relabelling.run_stages(
            prepared.learner.inputs,
            labels,
            prepared.learner.open(models, inputs.progress),
            stages=count,
            combine=self.options.combine,
            finished=saved,
        )
        results: list[StageResult] = []
        try:
            for number in range(count):
                inputs.progress(f"stage {number + 1} of {count}", None)
                result = next(stages)
                if number >= len(saved):
                    write_atomically(
                        _stage_path(directory, number), portions.pack_arrays(result.state())
                    )
                results.append(result)
        except ArithmeticError as error:
            if self.options.learner != HEAD:
                raise
            raise LabelguardError(
                f"a head cannot be fitted ({error}); take a larger ridge"
            ) from None
        return results

    def _build_card(self, prepared: PreparedStages, learned: LearnedStages) -> dict[str, Any]:
        options, soft = self.options, self.options.combine == "soft"
        head = options.learner == HEAD
        card: dict[str, Any] = {
            "props": {
                "learner": options.learner,
                **({"features": options.features} if head else {}),
                "combine": options.combine,
                "stages": [_describe_stage(result.report) for result in learned.results],
            },
            "train_with": "soft" if soft else "plain",
        }
        if learned.files:
            card["kind"] = "model"
            card["model"] = {
                "learner": options.learner,
                "base": _find_public_model_name(options.model),
                "identity": dict(prepared.learner.identity),
                "files": sorted(path.name for path in learned.files),
            }
        return card


def _find_public_model_name(model: str | None) -> str | None:
    """Return a base model's public name: of a path its last part alone."""
    return Path(model).name if model and Path(model).exists() else model


def _describe_stage(report: StageReport) -> dict[str, Any]:
    """Return a stage for the card; estimates are functions of released labels."""
    facts: dict[str, Any] = {"stage": report.stage + 1, "rows": report.rows}
    # A stage without rows, or without any label that tells something, has no estimate.
    if report.error is not None and math.isfinite(report.error.standard_error):
        facts |= {
            "estimated_error": round(report.error.rate, 6),
            "standard_error": round(report.error.standard_error, 6),
            "uninformative": report.error.uninformative,
            "labels_of_model": report.model_rows,
        }
    if not math.isnan(report.scale):
        facts["scale"] = round(report.scale, 6)
    return facts


_BUCKET = "bucket"


@dataclass(frozen=True)
class _RowsByItem:
    """The released rows of all item buckets, in so many buckets.

    They are in one order whatever the number of buckets is, as finished stages know them by it.
    """

    tables: dict[int, pa.Table]
    count: int

    @classmethod
    def read(cls, directory: Path, count: int) -> _RowsByItem:
        """Read the rows of released labels."""
        tables = {}
        finer = count // buckets.BUCKETS
        for coarse in range(buckets.BUCKETS):
            parts = []
            for bucket in range(coarse * finer, (coarse + 1) * finer):
                part = buckets.read_parts(directory, bucket)
                if part is not None:
                    here = pa.array(np.full(part.num_rows, bucket, np.uint16))
                    parts.append(part.append_column(_BUCKET, here))
            if parts:
                order = [("key_hi", "ascending"), ("key_lo", "ascending")]
                tables[coarse] = pa.concat_tables(parts).sort_by(order)
        return cls(tables, count)

    def column(self, name: str) -> NDArray[Any]:
        """Return one column of all buckets."""
        return np.concatenate([buckets.read_column(table, name) for table in self.tables.values()])

    def labels(self, pairs: DistinctPairs, stages: int) -> ReleasedLabels:
        """Return the labels that the stages learn from."""
        keys = np.stack([self.column("unit_hi"), self.column("unit_lo")], axis=1)
        return ReleasedLabels(
            pairs.of_row[self.column("row").astype(np.intp)],
            blocks.unique(keys)[1],
            props.assign_stages(keys, stages),
            props.assign_folds(keys, stages, _FOLDS),
            self.column("value").astype(np.uint8),
            self.column("flip_probability").astype(np.float64),
            self._compute_variance_factors(),
        )

    def _compute_variance_factors(self) -> NDArray[np.float64]:
        """Return the largest eigenvalue of the block of each row, from the law of the block."""
        distinct, which = blocks.distinct_rows(*(self.column(name) for name in _LAW))
        laws = [find_block(*each) for each in distinct.T.tolist()]
        factors = [
            compute_largest_eigenvalue(one.mean_sign, one.mean_sign_product, one.labels)
            for one in laws
        ]
        return np.array(factors, np.float64)[which]

    def write(
        self,
        directory: Path,
        target: NDArray[np.float64],
        residual: NDArray[np.float64],
        *,
        soft: bool,
    ) -> None:
        """Write the same rows with the combined labels."""
        start = 0
        for coarse, table in self.tables.items():
            rows = slice(start, start + table.num_rows)
            start += table.num_rows
            first = target[rows] >= 0.5
            columns = {name: table[name] for name in ("row", "key_hi", "key_lo")}
            columns["value"] = pa.array(first.astype(np.uint8))
            if soft:
                likelier = np.where(first, target[rows], 1 - target[rows])
                columns["label_probability"] = pa.array(likelier)
            else:
                columns["residual_flip_estimate"] = pa.array(residual[rows])
            targets = buckets.read_column(table, _BUCKET).astype(np.uint16)
            buckets.write_part(directory, coarse, pa.table(columns), targets, self.count)


def _stage_path(directory: Path, number: int) -> Path:
    return directory / f"stage={number + 1:02d}.npz"


def _list_finished_stages(directory: Path, stages: int) -> list[Path]:
    """Return the stages on disk, from the first to the last without a gap."""
    paths = (_stage_path(directory, number) for number in range(stages))
    return list(itertools.takewhile(Path.exists, paths))


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
    def fit(
        cls, options: PropsOptions, pairs: DistinctPairs, context: ReleaseContext
    ) -> HeadOfPairs:
        """Return the head of these options, with features fitted to the pairs."""
        workers = context.workers
        provider, x = fit_features(
            options.features, pairs.table, context.progress, workers, pairs.files
        )
        shape = Shape(**asdict(_DEFAULT_SHAPE) | options.collect_shape_options())
        axes = choose_basis(compute_spectrum(x), shape)
        return cls(options.features, provider, shape, axes, axes.coordinates(x, workers.scratch))

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return that of the features, and the shape of their coordinates."""
        return {"features": self.provider.identity(), "shape": asdict(self.shape)}

    def open(self, directory: Path, progress: Progress) -> HeadLearner:
        """Return the learner of heads; it keeps nothing on disk."""
        return HeadLearner(self.shape.ridge)

    def files(self, scorer: Scorer, directory: Path) -> tuple[Path, ...]:
        """Return none: `add_head_and_labels` publishes the head."""
        return ()

    def head(self, scorer: HeadScorer) -> Head:
        """Return the last model as a head that scores other pairs too."""
        return Head(
            self.features,
            self.provider.identity(),
            self.provider.state(),
            self.shape,
            self.basis,
            self.basis.projection @ scorer.theta,
        )


def prepare_learner(
    options: PropsOptions,
    pairs: DistinctPairs,
    context: ReleaseContext,
    recorded: Mapping[str, Any] | None,
) -> PreparedLearner:
    """Return the learner of these options, which must be that of the `recorded` parameters.

    Raises `PolicyError` for an unknown one, `LedgerError` for another than was recorded.
    """
    if options.learner == HEAD:
        learner: PreparedLearner = HeadOfPairs.fit(options, pairs, context)
    else:
        settings = LearnerOptions(options.model, options.lora, options.train_config)
        learner = _load_learner_factory(options.learner)(pairs.table, settings)
    if recorded:
        check_identity(
            options.learner, *describe_differences(recorded["identity"], learner.identity)
        )
    return learner


def describe_differences(
    recorded: Mapping[str, Any], present: Mapping[str, Any]
) -> tuple[str, str]:
    """Return two texts of the keys in which identities differ; equal ones if in none."""
    before, now = dict(_flatten_identity(recorded)), dict(_flatten_identity(present))
    keys = [key for key in sorted(before | now) if before.get(key) != now.get(key)]
    first, second = (
        ", ".join(f"{key} {side.get(key, 'not set')}" for key in keys) for side in (before, now)
    )
    return first, second


def _flatten_identity(identity: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the values of an identity as JSON, by keys with a dot for every level."""
    for key, value in identity.items():
        if isinstance(value, Mapping) and value:
            yield from ((f"{key}.{inner}", text) for inner, text in _flatten_identity(value))
        else:
            yield key, json.dumps(value, sort_keys=True)


def _load_learner_factory(name: str) -> LearnerFactory:
    """Return the learner of a name; raise `PolicyError` for one that is not there."""
    entry = extras.find_entry_point(GROUP, name)
    if entry is None:
        known = ", ".join(sorted({HEAD, *extras.list_entry_points(GROUP)}))
        raise PolicyError(f"unknown learner {name!r}; this installation has: {known}")
    try:
        factory: LearnerFactory = entry.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise PolicyError(f"learner {name} cannot be loaded: {error}") from None
    return factory
