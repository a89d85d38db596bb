"""`--mechanism props`: randomized response, bettered in stages by models of earlier stages.

Labels are drawn and charged as in `rr`; all that follows sees released labels only and costs
nothing. Stages are kept on disk, so that a run that was interrupted goes on where it stood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import LabelguardError, LedgerError, PolicyError
from labelguard.ingest.pairs import DistinctPairs, distinct_pairs
from labelguard.ingest.staging import Staged
from labelguard.learning.features import PairFeatures, open_fitted
from labelguard.learning.learners import HeadLearner, HeadScorer, Learner
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import props
from labelguard.mechanisms import props_stages as relabelling
from labelguard.mechanisms.geometry import Basis, Shape, basis, spectrum
from labelguard.mechanisms.props_stages import ReleasedLabels, StageReport, StageResult
from labelguard.release.head import FILE, Head
from labelguard.release.methods import further as also
from labelguard.release.methods.featured import FeatureOptions
from labelguard.release.methods.rr import RandomizedResponse, randomized_card
from labelguard.release.planning import Plan
from labelguard.release.protocol import Finished, Job
from labelguard.storage import arrays, buckets
from labelguard.storage.buckets import BucketWriter
from labelguard.storage.files import publish_directory, write_atomically
from labelguard.terms import LABEL_TIE

_FOLDS = 5
_DEFAULT_SHAPE = Shape(components=64, whitening=0.0)

LearnerFactory: TypeAlias = Callable[[pa.Table], tuple[Learner, NDArray[Any]]]
"""What the entry point group `labelguard.learners` holds: given the distinct pairs, a learner and
what it takes of each pair."""


@dataclass(frozen=True)
class PropsOptions(FeatureOptions):
    """PROPS in `stages` stages, combining votes `hard` or `soft`, with a learner.

    `head` is the linear head on features; others are found by entry point.
    """

    stages: int = 2
    combine: Literal["hard", "soft"] = "hard"
    learner: str = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stages < 2:
            raise PolicyError(f"stages must be at least 2, found {self.stages}")
        if self.combine not in ("hard", "soft"):
            raise PolicyError(f"combine must be hard or soft, found {self.combine!r}")
        if self.whitening is not None or self.floor is not None or self.clip_quantile is not None:
            raise PolicyError(
                "--whitening, --floor and --clip-quantile go with --mechanism statistic only"
            )

    def settings(self) -> dict[str, Any]:
        """With stages, combination and learner."""
        own = {"stages": self.stages, "combine": self.combine, "learner": self.learner}
        return super().settings() | own


@dataclass(frozen=True)
class _Prepared:
    pairs: DistinctPairs
    learner: Learner
    inputs: NDArray[Any]
    features: PairFeatures | None = None
    shape: Shape = _DEFAULT_SHAPE
    basis: Basis | None = None


class Relabelling(also.Featured[PropsOptions], RandomizedResponse):
    """PROPS; `labelguard.mechanisms.props` has its mathematics."""

    name = "props"
    version = 1

    def __init__(self, options: PropsOptions) -> None:
        super().__init__(options)
        self._prepared: _Prepared | None = None

    def prepare(
        self, job: Job, staged: Staged, plan: Plan, recorded: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Features of the public pairs, or whatever the learner takes of them."""
        if job.policy.ties == "half":
            raise PolicyError(
                "--ties half keeps ties as rows without a preference, and props labels every row; "
                "use --ties drop"
            )
        if not plan.rows:
            raise PolicyError("no label is left to release: all labelers are exhausted")
        pairs = distinct_pairs(staged)
        if self.options.learner != "head" and self.options.also is not None:
            raise PolicyError("--also goes with --learner head only")
        if self.options.learner != "head":
            learner, inputs = _factory(self.options.learner)(pairs.table)
            self._prepared = _Prepared(pairs, learner, inputs)
            return {"learner": self.options.learner}
        provider = open_fitted(self.options.features, pairs.table, job.progress)
        if recorded and recorded["identity"] != provider.identity():
            raise LedgerError(
                f"this release was begun with the features {recorded['identity']}; found "
                f"{provider.identity()}; restore them and run the same command again"
            )
        x = provider(pairs.table)
        shape = Shape(**asdict(_DEFAULT_SHAPE) | self.options.given())
        axes = basis(spectrum(x), shape)
        z = axes.coordinates(x)
        self._prepared = _Prepared(pairs, HeadLearner(shape.ridge), z, provider, shape, axes)
        return {"identity": provider.identity(), "shape": asdict(shape)}

    def finish(self, job: Job, staged: Staged, plan: Plan, grant: Grant) -> Finished:
        """Relabel the released rows, stage by stage, and save the head."""
        assert self._prepared is not None, "prepare comes first"
        prepared = self._prepared
        rows = _Released.read(job.outcomes, staged)
        labels = rows.labels(prepared.pairs, self.options.stages)
        results = self._stages(job, grant, prepared, labels)
        target, residual = relabelling.assembled(results)
        rows.write(job.outcomes, target, residual, soft=self.options.combine == "soft")
        card = randomized_card(plan, grant, job.policy)
        card |= self._card([result.report for result in results])
        finished = Finished(card)
        head = _head(results[-1].scorer, prepared, self.options.features)
        if head is None:
            return finished
        finished = Finished(card, {FILE: head.to_bytes()})
        provider = prepared.features
        assert provider is not None
        return self.with_further(
            prepared.pairs,
            job,
            lambda pairs: head.probability(provider(pairs)),
            finished,
        )

    def _stages(
        self, job: Job, grant: Grant, prepared: _Prepared, labels: ReleasedLabels
    ) -> list[StageResult]:
        """All stages; those that an interrupted run finished are taken from disk."""
        directory = job.project.stages / grant.release.id
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
    for entry in entry_points(group="labelguard.learners", name=name):
        factory: LearnerFactory = entry.load()
        return factory
    known = sorted({"head", *(e.name for e in entry_points(group="labelguard.learners"))})
    raise PolicyError(f"unknown learner {name!r}; this installation has: {', '.join(known)}")


def _report(report: StageReport) -> dict[str, Any]:
    """A stage as the card tells it; estimates are functions of released labels."""
    told: dict[str, Any] = {"stage": report.stage + 1, "rows": report.rows}
    if report.error is not None:
        told |= {
            "estimated_error": round(report.error.rate, 6),
            "standard_error": round(report.error.standard_error, 6),
            "uninformative": report.error.uninformative,
            "labels_of_model": report.model_rows,
        }
    if not math.isnan(report.scale):
        told["scale"] = round(report.scale, 6)
    return told


@dataclass(frozen=True)
class _Released:
    """The released rows of all item buckets, with where each bucket begins."""

    tables: dict[int, pa.Table]

    @classmethod
    def read(cls, directory: Path, staged: Staged) -> _Released:
        """Rows of strict released labels; released ties carry none."""
        tables = {}
        for bucket in range(buckets.BUCKETS):
            table = buckets.read_bucket(directory, bucket)
            if table is not None:
                strict = buckets.column(table, "value") != np.uint8(LABEL_TIE)
                # Threads wrote them in any order.
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
        """Put the combined labels in place of the released ones."""
        temporary = directory.with_name("relabelled")
        start = 0
        with BucketWriter(temporary) as outcomes:
            for bucket, table in self.tables.items():
                part = slice(start, start + table.num_rows)
                start += table.num_rows
                first = target[part] >= 0.5
                columns = {name: table[name] for name in ("row", "key_hi", "key_lo")}
                columns["value"] = pa.array(first.astype(np.uint8))
                if soft:
                    likelier = np.where(first, target[part], 1 - target[part])
                    columns["label_probability"] = pa.array(likelier)
                else:
                    columns["residual_flip_estimate"] = pa.array(residual[part])
                whole = np.full(table.num_rows, bucket, np.uint8)
                outcomes.append(pa.table(columns), whole)
        publish_directory(temporary, directory)


def _head(scorer: Any, prepared: _Prepared, features: str) -> Head | None:
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
