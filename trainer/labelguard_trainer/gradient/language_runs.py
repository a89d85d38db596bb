"""What a run on a language model is fixed by: its records, clip norm and rate, all public."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels
from labelguard.ingest.pairs import DistinctPairs
from labelguard.learning.learners import LearnerOptions
from labelguard.mechanisms.statistic import Rows
from labelguard.release.methods.further import with_further
from labelguard.release.protocol import Finished, Job
from labelguard_trainer.gradient.doubling import doubled
from labelguard_trainer.gradient.language import LanguageProblem
from labelguard_trainer.gradient.language_options import PreparedLanguage
from labelguard_trainer.gradient.records import Records, Weighting
from labelguard_trainer.training.settings import Kind

__all__ = ["LanguageRun", "language_run"]

_SAMPLE = 32
"""Units whose gradients, of simulated labels, tell the clip norm."""


@dataclass(frozen=True, eq=False, repr=False)
class LanguageRun:
    """A `LearnerRun` of a reward or DPO model; `pairs` of its texts are those of the input."""

    prepared: PreparedLanguage
    records: Records
    clip: float
    pairs: int

    @property
    def parameters(self) -> dict[str, Any]:
        """Model and settings, clip norm and labels a step."""
        own = {"clip": self.clip, "limit": self.records.limit}
        return {"identity": dict(self.prepared.identity), **own}

    @property
    def told(self) -> dict[str, Any]:
        """What it started from, and how."""
        return {
            "identity": dict(self.prepared.identity),
            "labels_a_step": self.records.limit,
            "noise_drawn": "in floating point",
        }

    def problem(self) -> LanguageProblem:
        """The base model."""
        return self.prepared.open(self.records)

    def margins(self, problem: LanguageProblem) -> NDArray[np.float64]:
        """Of the model, as it is."""
        return problem.margins()[: self.pairs]

    def released(
        self, job: Job, problem: LanguageProblem, pairs: DistinctPairs, finished: Finished
    ) -> Finished:
        """With the directory `model`, and labels of further pairs."""
        directory = job.opened.project.work / "model"
        finished = replace(finished, files=problem.export(directory))
        probability = 0.5 * (1 + np.tanh(problem.margins()[self.pairs :] / 2))
        return with_further(finished, job, pairs, lambda new: probability[new])


def language_run(
    kind: Kind,
    options: LearnerOptions,
    pairs: DistinctPairs,
    further: DistinctPairs | None,
    rows: Rows,
    *,
    weighting: Weighting,
    cohort: float,
    recorded: Mapping[str, Any] | None,
) -> LanguageRun:
    """A reward or DPO model on the texts of pairs that `rows` compare, and of further ones.

    The clip norm is `max_grad_norm` of the configuration, or the median norm of gradients at the
    base model whose labels are fair coins; so are G (see `doubling`; `cohort` is its argument) and
    all else public. `recorded` are the parameters of a release that is being resumed.

    Raises `PolicyError` for rankings of more than two: language models learn from pairs.
    """
    texts = [pairs.table.select(_TEXTS)]
    texts += [further.table.select(_TEXTS)] if further else []
    prepared = PreparedLanguage.of(kind, pa.concat_tables(texts), options)
    most = int(np.median(np.bincount(rows.unit)[np.unique(rows.unit)]))

    def records(limit: int) -> Records:
        return Records(rows.pair, rows.unit, rows.units, limit, weighting)

    if recorded:
        clip, limit = float(recorded["clip"]), int(recorded["limit"])
    else:
        rng = np.random.default_rng(0)
        units = np.unique(rows.unit)
        some = np.sort(rng.permutation(units)[:_SAMPLE])
        coins = rng.integers(0, 2, len(rows)).astype(np.float64)

        @cache
        def norm(limit: int) -> float:
            found = prepared.open(records(limit)).norms(some, coins)
            found = found[np.isfinite(found)]
            return float(np.median(found[found > 0])) if (found > 0).any() else 0.0

        limit = doubled(lambda g: norm(g) / g ** (weighting == "root") ** 0.5, cohort, most)
        clip = prepared.clip or norm(limit)
    if not clip > 0:
        raise InvalidLabels("no label can move the model: both sides of every pair score the same")
    return LanguageRun(prepared, records(limit), clip, len(pairs))


_TEXTS = ["prompt", "first", "second"]
