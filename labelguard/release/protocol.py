"""The interface of mechanisms: their steps in a release, in order, and what each is given.

`prepare` sees public columns only and comes before the charge. `draw` alone reads labels, behind a
grant, and fills the private map. Once that is complete and the ledger knows it, no label is read
any more: `learn` sees released rows alone, and `finish` turns all of it into the release. What one
step knows the next one is given: a mechanism remembers nothing between them.
`labelguard.release.privatize` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelguard.budget import pricing
from labelguard.budget.event_kind import Price
from labelguard.budget.policy import Allowance, Policy
from labelguard.inputs.pairs import DistinctPairs, find_distinct_pairs, read_comparisons
from labelguard.inputs.sources import Input
from labelguard.inputs.staged import Staged
from labelguard.keys.prf import Split
from labelguard.learning.columns import FeatureColumn
from labelguard.learning.features import PairFeatures, fit_features
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms.statistic import Rows
from labelguard.project.opening import OpenProject
from labelguard.release.selection import PlannedRows
from labelguard.storage.executor import Executor, Result, Task, Workers, run_over_buckets
from labelguard.text import Progress


@dataclass(frozen=True, eq=False)
class Featured:
    """Public: distinct pairs, x (pairs, d) of a provider fitted on them, and who compared them.

    Computed once in a run: a first policy is sized by it, and the release is made of it.
    """

    spec: str
    pairs: DistinctPairs
    provider: PairFeatures
    x: NDArray[np.float32]
    compared: Rows

    @classmethod
    def fit(cls, staged: Staged, spec: str, progress: Progress, workers: Workers) -> Self:
        """Fit features of a staged input; raises as `find_distinct_pairs` and `fit_features`."""
        pairs = find_distinct_pairs(staged, workers.executor)
        provider, x = fit_features(spec, pairs.table, progress, workers, pairs.files)
        compared = _renumber_units_by_comparisons(read_comparisons(staged, pairs.of_row), len(x))
        return cls(spec, pairs, provider, x, compared)


def _renumber_units_by_comparisons(rows: Rows, pairs: int) -> Rows:
    """Return comparisons with units numbered by what they compared, not by their pseudonyms.

    Simulated labels follow the order of units: so a forecast is the same under every key, in a dry
    run without a project, too. Units that compared the same are interchangeable.
    """
    code = np.random.default_rng(0).integers(2**63, size=pairs, dtype=np.uint64)
    compared = np.zeros(rows.units, np.uint64)
    np.add.at(compared, rows.unit, code[rows.pair])
    number = np.empty(rows.units, np.intp)
    number[np.argsort(compared, kind="stable")] = np.arange(rows.units)
    unit = number[rows.unit]
    order = np.lexsort((rows.pair, unit))
    ranking, size = rows.ranking, rows.size
    if ranking is not None:
        _, first, which = np.unique(ranking[order], return_index=True, return_inverse=True)
        ranking = np.argsort(np.argsort(first))[which]
    return replace(
        rows,
        pair=rows.pair[order],
        unit=unit[order],
        ranking=ranking,
        size=None if size is None else size[order],
    )


@dataclass(frozen=True)
class Further:
    """Further pairs without labels, staged and distinct, which a head labels too."""

    staged: Staged
    pairs: DistinctPairs


@dataclass(frozen=True)
class ReleaseContext:
    """The project, policy and staged input that a mechanism works with during one release.

    `outcomes` is where rows as drawn are written, by item (see `drawn.Outcomes`). `featured` are
    the features of the input, where a first policy was sized by them.
    """

    opened: OpenProject
    policy: Policy
    allowance: Allowance
    again: bool
    executor: Executor
    progress: Progress
    staged: Staged
    further: Further | None
    outcomes: Path
    featured: Featured | None = None

    @property
    def workers(self) -> Workers:
        """Return what encodes texts."""
        return Workers(self.executor, self.opened.project.work)

    def find_or_calibrate_prices(self) -> Mapping[int, Price]:
        """Return what a use costs, by uses in all: from the ledger, or calibrated now."""
        event = self.allowance.event
        if known := self.opened.ledger.policies.prices(event):
            return known
        self.progress("calibrating", None)
        return pricing.compute_prices(self.policy, event)

    def over_buckets(
        self, step: str, work: Callable[[Task, int], Result], task: Task
    ) -> Iterator[Result]:
        """Yield `work(task, bucket)` of all buckets in order (see `storage.executor`)."""
        count = self.staged.buckets
        report = partial(self.progress, step)
        return run_over_buckets(self.executor, work, task, report, count=count)


@dataclass(frozen=True)
class Prepared:
    """A plan that is fixed before the charge.

    `parameters` go to the ledger: a release that is resumed is prepared by them again.
    `long_running`: `learn` may take hours, so that the project is let go for it (see
    `release.drawn`). It goes with no further pairs.
    """

    plan: PlannedRows
    parameters: Mapping[str, Any]
    long_running: bool = field(default=False, kw_only=True)

    def renumber(self, rows: NDArray[np.intp]) -> Self:
        """Return the same for staged rows with other numbers: row i was `rows[i]`."""
        return self


@dataclass(frozen=True)
class TrainingInputs:
    """The inputs of `learn`: no project, no ledger, and no label but as it was released.

    `outcomes` are the rows as drawn (see `drawn.Outcomes`), in so many `buckets`. `directory` is
    the release's own: a crash leaves it as it is, the same command finds it again, and it goes with
    the commit.
    """

    outcomes: Path
    buckets: int
    directory: Path
    progress: Progress


@dataclass(frozen=True)
class Finished:
    """A mechanism's part of a release: sections of the card, released rows, public files.

    `outcomes` names the directories of released rows (see `drawn.Outcomes`), each with the staged
    input that it is about: the labels', and, with `further` rows, that of the further pairs.
    `files` are files or directories that are moved into the release under their own names.
    """

    card: Mapping[str, Any]
    outcomes: tuple[tuple[Staged, Path], ...]
    further: int = 0
    files: tuple[Path, ...] = field(default=())


P = TypeVar("P", bound=Prepared)


class Mechanism(Protocol[P]):
    """One way to release labels. Kinds of priced events are core's; each mechanism names one."""

    name: str
    version: int
    priced: str
    # Public columns that the input must have.
    features: tuple[FeatureColumn, ...] = ()
    # Whose labels it takes: `held-out` units are for evaluation, and no other mechanism has them.
    part: Split = "training"
    # Further pairs to label by a head; their digest is part of the idempotency key.
    also: Input | None = None

    def bind(self, opened: OpenProject) -> Self:
        """Return the mechanism with what it has to know of a project's earlier releases."""
        return self

    def settings(self) -> dict[str, Any]:
        """Return the options beyond the policy; part of the request's idempotency key."""
        return {}

    def policy_defaults(self, counts: NDArray[np.int64]) -> Mapping[str, Any]:
        """Return fields of a `PolicyRequest` that a first policy fixes for this mechanism.

        `counts` (units,) are how many labels each unit of the input gave: public.
        """
        return {}

    def check(self, context: ReleaseContext) -> None:
        """Raise `PolicyError` where `prepare` would, as far as that is known without features.

        A preview calls it too.
        """
        return

    def prepare(
        self, context: ReleaseContext, plan: PlannedRows, recorded: Mapping[str, Any] | None
    ) -> P:
        """Do public work before the charge.

        `recorded` are the parameters of the release that is being resumed: they are taken as they
        are.
        """
        ...

    def draw(
        self, context: ReleaseContext, prepared: P, grant: Grant, map_path: Path | None
    ) -> None:
        """Draw labels into the private map at `map_path`, with randomness of its own.

        Without that path the release was drawn before, and no label is read.
        """
        ...

    def learn(self, inputs: TrainingInputs, prepared: P) -> P:
        """Learn, once all labels are drawn, and return what `finish` needs of it."""
        return prepared

    def finish(self, context: ReleaseContext, prepared: P, grant: Grant) -> Finished:
        """Return the released rows, from the private map and public columns."""
        ...
