"""`--mechanism props`: randomized response, bettered in stages by models of earlier stages.

Labels are drawn and charged as in `rr`; all that follows sees released labels only and costs
nothing. Stages are saved on disk, so that a run that was interrupted goes on where it stood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import doors
from labelguard.errors import LabelguardError, PolicyError
from labelguard.ingest.pairs import DistinctPairs, distinct_pairs
from labelguard.learning.features import PairFeatures, column_features, open_fitted
from labelguard.learning.learners import HeadLearner, HeadScorer, Learner
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import props
from labelguard.mechanisms import props_stages as relabelling
from labelguard.mechanisms.geometry import Basis, Shape, basis, spectrum
from labelguard.mechanisms.props_stages import ReleasedLabels, StageReport, StageResult
from labelguard.policy.events import RANDOMIZED_LABELS
from labelguard.release.head import Head
from labelguard.release.methods.further import check_identity, with_head
from labelguard.release.methods.options import PropsOptions
from labelguard.release.methods.rr import draw_labels, randomized_card
from labelguard.release.planning import Plan
from labelguard.release.protocol import Finished, Job, Mechanism, Prepared
from labelguard.storage import arrays, buckets
from labelguard.storage.files import write_atomically
from labelguard.terms import LABEL_TIE

_FOLDS = 5
_LEARNERS = "labelguard.learners"
_DEFAULT_SHAPE = Shape(components=64, whitening=0.0)

LearnerFactory: TypeAlias = Callable[[pa.Table], tuple[Learner, NDArray[Any]]]
"""What the entry point group `labelguard.learners` holds: given the distinct pairs, a learner and
what it takes of each pair."""


@dataclass(frozen=True)
class Relearning(Prepared):
    """Public pairs, and what the learner takes of each; features and axes if it is a head."""

    pairs: DistinctPairs
    learner: Learner
    inputs: NDArray[Any]
    features: PairFeatures | None = None
    shape: Shape = _DEFAULT_SHAPE
    basis: Basis | None = None


class Relabelling(Mechanism[Relearning]):
    """PROPS; `labelguard.mechanisms.props` has its mathematics."""

    name = "props"
    version = 1
    priced = RANDOMIZED_LABELS.name

    def __init__(self, options: PropsOptions) -> None:
        self.options = options
        self.features, self.also = column_features(options.features), options.also

    def settings(self) -> dict[str, Any]:
        """Features, stages, combination, learner."""
        return self.options.settings()

    def prepare(self, job: Job, plan: Plan, recorded: Mapping[str, Any] | None) -> Relearning:
        """Features of the public pairs, or whatever the learner takes of them."""
        if job.policy.ties == "half":
            raise PolicyError(
                "--ties half keeps ties as rows without a preference, and props labels every row; "
                "use --ties drop"
            )
        if not plan.rows:
            raise PolicyError("no label is left to release: all labelers are exhausted")
        pairs = distinct_pairs(job.staged)
        if self.options.learner != "head":
            learner, inputs = _factory(self.options.learner)(pairs.table)
            return Relearning(plan, {"learner": self.options.learner}, pairs, learner, inputs)
        provider = open_fitted(self.options.features, pairs.table, job.progress)
        identity = provider.identity()
        if recorded:
            check_identity(recorded["identity"], identity)
        x = provider(pairs.table)
        shape = Shape(**asdict(_DEFAULT_SHAPE) | self.options.given())
        axes = basis(spectrum(x), shape)
        z, learner = axes.coordinates(x), HeadLearner(shape.ridge)
        parameters = {"identity": identity, "shape": asdict(shape)}
        return Relearning(plan, parameters, pairs, learner, z, provider, shape, axes)

    def draw(self, job: Job, prepared: Relearning, grant: Grant, drawn: Path | None) -> None:
        """As `rr`."""
        draw_labels(job, prepared, grant, drawn)

    def finish(self, job: Job, prepared: Relearning, grant: Grant) -> Finished:
        """Relabel the released rows, stage by stage, and save the head."""
        rows = _Released.read(job.outcomes)
        labels = rows.labels(prepared.pairs, self.options.stages)
        results = self._stages(job, grant, prepared, labels)
        target, residual = relabelling.assembled(results)
        relabelled = job.opened.project.work / "relabelled"
        rows.write(relabelled, target, residual, soft=self.options.combine == "soft")
        card = randomized_card(job) | self._card([result.report for result in results])
        finished = Finished(card, ((job.staged, relabelled),))
        head = _head(results[-1].scorer, prepared, self.options.features)
        if head is None or prepared.features is None:
            return finished
        return with_head(finished, job, head, prepared.features, prepared.pairs)

    def _stages(
        self, job: Job, grant: Grant, prepared: Relearning, labels: ReleasedLabels
    ) -> list[StageResult]:
        """All stages; those that an interrupted run finished are taken from disk."""
        directory = job.opened.project.stages / grant.release.id
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        saved = [arrays.load(path) for path in _consecutive(directory, self.options.stages)]
        results = []
        stages = relabelling.run_stages(
            prepared.inputs,
            labels,
            prepared.learner,
            stages=self.options.stages,
            combine=self.options.combine,
            finished=saved,
        )
        try:
            for number, result in enumerate(stages):
                job.progress(f"stage {number + 1} of {self.options.stages}", None)
                if number >= len(saved):
                    write_atomically(_stage_path(directory, number), arrays.packed(result.state()))
                results.append(result)
        except ArithmeticError as error:
            raise LabelguardError(
                f"a head cannot be fitted ({error}); take a larger ridge"
            ) from None
        return results

    def _card(self, reports: list[StageReport]) -> dict[str, Any]:
        soft = self.options.combine == "soft"
        return {
            "props": {
                "learner": self.options.learner,
                "features": self.options.features,
                "combine": self.options.combine,
                "stages": [_report(report) for report in reports],
            },
            "train_with": "soft" if soft else "plain",
        }


def _factory(name: str) -> LearnerFactory:
    door = doors.door(_LEARNERS, name)
    if door is not None:
        factory: LearnerFactory = door.load()
        return factory
    known = sorted({"head", *doors.names(_LEARNERS)})
    raise PolicyError(f"unknown learner {name!r}; this installation has: {', '.join(known)}")


def _report(report: StageReport) -> dict[str, Any]:
    """A stage as the card says it; estimates are functions of released labels."""
    said: dict[str, Any] = {"stage": report.stage + 1, "rows": report.rows}
    if report.error is not None:
        said |= {
            "estimated_error": round(report.error.rate, 6),
            "standard_error": round(report.error.standard_error, 6),
            "uninformative": report.error.uninformative,
            "labels_of_model": report.model_rows,
        }
    if not math.isnan(report.scale):
        said["scale"] = round(report.scale, 6)
    return said


@dataclass(frozen=True)
class _Released:
    """The released rows of all item buckets, with where each bucket begins."""

    tables: dict[int, pa.Table]

    @classmethod
    def read(cls, directory: Path) -> _Released:
        """Rows of strict released labels; released ties carry none."""
        tables = {}
        for bucket in range(buckets.BUCKETS):
            table = buckets.read_parts(directory, bucket)
            if table is not None:
                strict = buckets.column(table, "value") != np.uint8(LABEL_TIE)
                order = [("key_hi", "ascending"), ("key_lo", "ascending")]
                tables[bucket] = table.filter(pa.array(strict)).sort_by(order)
        return cls(tables)

    def column(self, name: str) -> NDArray[Any]:
        """One column of all buckets."""
        return np.concatenate([buckets.column(table, name) for table in self.tables.values()])

    def labels(self, pairs: DistinctPairs, stages: int) -> ReleasedLabels:
        """What the stages learn from."""
        pair = pairs.of_row[self.column("row").astype(np.intp)]
        items = pairs.items[pair]
        return ReleasedLabels(
            pair,
            props.stage_of(items, stages),
            props.fold_of(items, stages, _FOLDS),
            self.column("value").astype(np.uint8),
            self.column("flip_probability").astype(np.float64),
        )

    def write(
        self,
        directory: Path,
        target: NDArray[np.float64],
        residual: NDArray[np.float64],
        *,
        soft: bool,
    ) -> None:
        """The same rows with the combined labels."""
        start = 0
        for bucket, table in self.tables.items():
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
            every = np.full(table.num_rows, bucket, np.uint8)
            buckets.write_part(directory, bucket, pa.table(columns), every)


def _head(scorer: Any, prepared: Relearning, features: str) -> Head | None:
    """The last model as a head, if it is one."""
    if not isinstance(scorer, HeadScorer) or prepared.basis is None or prepared.features is None:
        return None
    return Head(
        features,
        prepared.features.identity(),
        prepared.features.state(),
        prepared.shape,
        prepared.basis,
        prepared.basis.projection @ scorer.theta,
    )


def _stage_path(directory: Path, number: int) -> Path:
    return directory / f"stage={number + 1:02d}.npz"


def _consecutive(directory: Path, stages: int) -> list[Path]:
    """The stages on disk, from the first to the last without a gap."""
    found = []
    for number in range(stages):
        path = _stage_path(directory, number)
        if not path.exists():
            break
        found.append(path)
    return found
