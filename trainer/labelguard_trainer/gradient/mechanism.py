"""`--mechanism uls|els|els-group|aup`: a model learns from labels by noisy gradients.

The run is planned, charged and only then trained; what is released is the model and the labels that
it gives to every pair of the input, and to further ones. Every labeler of the input is charged a
run, whoever a step happened to sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import subsampled
from labelguard.budget.event_kind import Sampling
from labelguard.budget.events import AUP, ELS, ELS_GROUP, ULS
from labelguard.errors import PolicyError, ProjectError
from labelguard.inputs.pairs import DistinctPairs, find_distinct_pairs
from labelguard.learning.columns import parse_feature_columns
from labelguard.learning.learners import LearnerOptions
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.prior import Prior
from labelguard.processes import require_one_process
from labelguard.release import card as cards
from labelguard.release.mechanisms.props import HEAD, describe_differences
from labelguard.release.mechanisms.statistic import LabelNotes, record_used_labels
from labelguard.release.mechanisms.statistic_design import (
    check_has_new_labels,
    check_identity,
    read_planned_comparisons,
    write_pair_labels,
)
from labelguard.release.pairs_file import find_agreement_in_releases
from labelguard.release.protocol import Featured, Finished, Mechanism, Prepared, ReleaseContext
from labelguard.release.sections import Section
from labelguard.release.selection import PlannedRows
from labelguard.storage import portions
from labelguard.text import LABEL_A, LABEL_TIE
from labelguard_trainer.gradient import aup, loop
from labelguard_trainer.gradient.aup import AupRun
from labelguard_trainer.gradient.heads import prepare_head_run
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun, Problem
from labelguard_trainer.gradient.options import AupOptions, GradientOptions, UlsOptions


class LearnerRun(Protocol):
    """The public parameters of a run beside its sampling and noise."""

    @property
    def clip(self) -> float:
        """The norm to which the gradient of each unit is clipped."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters that the ledger keeps, so that a release that is resumed is prepared alike."""

    @property
    def card_facts(self) -> Mapping[str, Any]:
        """Facts for the card."""

    def problem(self) -> Problem:
        """Return the model before its first step."""

    def predict_log_odds(self, problem: Any) -> NDArray[np.float64]:
        """Log-odds that the first side is preferred, for every pair that it labels."""

    def add_model_and_further_labels(
        self, context: ReleaseContext, problem: Any, pairs: DistinctPairs, finished: Finished
    ) -> Finished:
        """Add the model that `problem` has become, and the labels that it gives further pairs."""


# The trained model, in the private map of its release.
FILE = "trained.npz"

_STEPS_BETWEEN = 10  # steps between two checkpoints


@dataclass(frozen=True)
class GradientRun(Prepared):
    """A run that is prepared, all of it public; `row` (n,) are the rows of the release it uses."""

    pairs: DistinctPairs
    learner: LearnerRun
    row: NDArray[np.intp]
    run: NoisyRun


class GradientMechanism(Mechanism[GradientRun]):
    """A gradient mechanism; which one, its options say."""

    version = 1

    def __init__(self, options: GradientOptions) -> None:
        self.options = options
        self.name = self.priced = options.kind.name
        self.also = options.also
        if options.learner == HEAD:
            self.features = parse_feature_columns(options.features)

    def settings(self) -> dict[str, Any]:
        """Return what learns, from what, and how it is weighed; the policy has the rest."""
        return self.options.settings()

    def policy_defaults(self, counts: NDArray[np.int64]) -> dict[str, Any]:
        """Return the sampling."""
        return {"sampling": self.options.sampling(counts)}

    def prepare(
        self, context: ReleaseContext, plan: PlannedRows, recorded: Mapping[str, Any] | None
    ) -> GradientRun:
        """Coordinates or tokens, clip norm and rates, from public columns only."""
        require_one_process(f"--mechanism {self.name}")
        sampling = context.allowance.sampling
        assert sampling is not None
        self.options.check_sampling_matches_policy(sampling)
        featured = self._featurize(context)
        pairs = (
            featured.pairs if featured else find_distinct_pairs(context.staged, context.executor)
        )
        rows = read_planned_comparisons(context, plan, pairs, released_too=True)[1]
        check_has_new_labels(rows)
        row, rows = select_rows_and_number_units(
            rows, sampling, by_record=self.options.kind.further_term == "records"
        )
        [price] = context.find_or_calibrate_prices().values()
        learner: LearnerRun
        if featured is None:
            learner = self._prepare_language_run(context, pairs, rows, sampling, recorded)
        else:
            if recorded:
                check_identity("features", recorded["identity"], featured.provider.identity())
            proven = self.options.kind.proven  # a run that may halt is not simulated
            prior = Prior(self.options.agreement or find_agreement_in_releases(context.opened))
            learner = prepare_head_run(
                featured,
                rows,
                price,
                self.options.weighting,
                recorded["shape"] if recorded else self.options.collect_shape_options(),
                prior if proven else None,
                context.progress,
            )
        if isinstance(self.options, AupOptions):
            distance = self.options.distance * learner.clip
            run: NoisyRun = AupRun.from_price(price, distance, rows.units)
        else:
            run = NoisyRun.from_price(price, learner.clip, rows.units)
        return GradientRun(plan, learner.parameters, pairs, learner, row, run)

    def _featurize(self, context: ReleaseContext) -> Featured | None:
        """For a head, the input with features that are fitted to it."""
        if self.options.learner != HEAD:
            return None
        known = context.featured
        if known is not None and known.spec == self.options.features:
            return known
        return Featured.fit(
            context.staged, self.options.features, context.progress, context.workers
        )

    def _prepare_language_run(
        self,
        context: ReleaseContext,
        pairs: DistinctPairs,
        rows: Rows,
        sampling: Sampling,
        recorded: Mapping[str, Any] | None,
    ) -> LearnerRun:
        """Return the run of a language model; its identity must be the recorded one, if any."""
        from labelguard_trainer.gradient.language_runs import prepare_language_run

        if rows.size is not None and (rows.size > 2).any():
            raise PolicyError(
                "rankings of several responses go with --learner head; a language model learns "
                "from pairs"
            )
        options, policy = self.options, context.policy
        run = prepare_language_run(
            "reward" if options.learner == "reward" else "dpo",
            LearnerOptions(options.model, options.lora, options.train_config),
            pairs,
            context.further.pairs if context.further else None,
            rows,
            weighting=options.weighting,
            cohort=_compare_noise_with_doubled_cohorts(policy.epsilon, policy.delta, sampling),
            recorded=recorded,
        )
        if recorded:
            before, now = recorded["identity"], run.parameters["identity"]
            check_identity(options.learner, *describe_differences(before, now))
        return run

    def draw(
        self, context: ReleaseContext, prepared: GradientRun, grant: Grant, map_path: Path | None
    ) -> None:
        """Train; what the run became goes into the map, with a note of which labels it used."""
        if map_path is None:
            return
        staged = context.staged
        task = LabelNotes(staged.rows_directory, staged.buckets, prepared.plan.directory, map_path)
        parts = list(context.over_buckets("reading", record_used_labels, task))
        noted = np.concatenate([part for part in parts if part is not None])[prepared.row]
        labels = np.where(noted == LABEL_TIE, 0.5, noted == LABEL_A)
        problem, run = prepared.learner.problem(), prepared.run
        outcome: dict[str, NDArray[Any]] = {}

        def report_training(share: float) -> None:
            context.progress("training", share)

        if isinstance(run, AupRun):
            outcome["steps done"] = np.array(aup.train(problem, labels, run, report_training))
        else:
            directory = context.opened.project.stages / grant.release.id
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            checkpoints = Checkpoints(directory, _STEPS_BETWEEN, _make_seal(context, grant, run))
            loop.train(problem, labels, run, checkpoints, report_training)
        (map_path / FILE).write_bytes(portions.pack_arrays({**problem.state(), **outcome}))

    def finish(self, context: ReleaseContext, prepared: GradientRun, grant: Grant) -> Finished:
        """Publish the model, and label every pair by it."""
        state = _load_trained(context.opened.project.private_maps / grant.release.id / FILE)
        steps = state.pop("steps done", None)
        learner = prepared.learner
        problem = learner.problem()
        problem.restore(state)
        probability = 0.5 * (1 + np.tanh(learner.predict_log_odds(problem) / 2))
        write_pair_labels(context, prepared.plan, prepared.pairs, probability)
        facts = card(context, self.options, prepared.run, steps, learner.card_facts)
        finished = Finished(facts, ((context.staged, context.outcomes),))
        return learner.add_model_and_further_labels(context, problem, prepared.pairs, finished)


def _make_seal(context: ReleaseContext, grant: Grant, run: NoisyRun) -> Callable[[bytes], bytes]:
    """Return what tells the checkpoints of a release's run from whatever else is found in their
    place.
    """
    prefix = f"{grant.release.id} {run!r} ".encode()
    keys = context.opened.keys
    return lambda data: keys.mac("checkpoint", prefix + data)


def _compare_noise_with_doubled_cohorts(epsilon: float, delta: float, sampling: Sampling) -> float:
    """By what the noise on a mean gradient changes if cohorts are doubled, σ(2q)/2σ(q)."""
    if sampling.records is not None or sampling.probability > 0.5:
        return 1.0
    one, two = (
        subsampled.calibrate(epsilon, delta, times * sampling.probability, sampling.steps)
        for times in (1, 2)
    )
    return min(two / (2 * one), 1.0)


def select_rows_and_number_units(
    rows: Rows, sampling: Sampling, *, by_record: bool
) -> tuple[NDArray[np.intp], Rows]:
    """Return which rows a run uses, and they with everybody who is sampled as a unit.

    Units are numbered anew: who gave no row (they may be exhausted) is not sampled. By record,
    everybody's first so many in canonical order, which is by digests of items: neither a label nor
    the order of the input decides it. Each is a unit of its own then.
    """
    every = np.arange(len(rows))
    labelers, unit = np.unique(rows.unit, return_inverse=True)
    rows = replace(rows, unit=unit, units=len(labelers))
    if not by_record or sampling.records is None:
        return every, rows
    record = every if rows.ranking is None else rows.ranking
    _, first, record = np.unique(record, return_index=True, return_inverse=True)
    unit = rows.unit[first]
    order = np.argsort(unit, kind="stable")
    begins = np.searchsorted(unit[order], np.arange(rows.units))
    rank = np.empty(len(first), np.intp)
    rank[order] = np.arange(len(first)) - begins[unit[order]]
    row = np.flatnonzero((rank < sampling.records)[record])
    unit_of = np.unique(record[row], return_inverse=True)[1]
    used = replace(rows, pair=rows.pair[row], unit=unit_of, units=int(unit_of.max()) + 1)
    if rows.ranking is None or rows.size is None:
        return row, used
    return row, replace(used, ranking=rows.ranking[row], size=rows.size[row])


def _load_trained(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return dict(portions.load_arrays(path))
    except (OSError, ValueError):
        raise ProjectError(f"{path} is missing or damaged; restore it from a backup") from None


# The limit of the guarantee of a language model.
DISCRETE = (
    "what it may tell that noise drawn in floating point is discrete: the guarantee is that of "
    "continuous noise, and covers how far its values reach, not which of them there are"
)

_ACCOUNTING = {
    ULS.name: "Poisson-subsampled Gaussian mechanism over labelers, privacy loss distribution",
    ELS.name: "Poisson-subsampled Gaussian mechanism over labels, the smaller of two bounds",
    ELS_GROUP.name: "Poisson-subsampled Gaussian mechanism over labels, group privacy",
    AUP.name: "as published (AUP-RLHF, theorem 3), NOT PROVEN",
}


def card(
    context: ReleaseContext,
    options: GradientOptions,
    run: NoisyRun,
    steps_done: Any,
    learner: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the sections of a card; all of it public, but for the step of a halt, which was
    released.
    """
    kind = options.kind
    facts: dict[str, Any] = {
        "learner": options.learner,
        "noise_multiplier": run.noise_multiplier,
        "sampling_probability": run.threshold / 2**64,
        "steps": run.steps,
        "sampled": "labels" if kind.further_term == "records" else context.policy.unit + "s",
        "population": run.units,
        **learner,
    }
    if isinstance(run, AupRun):
        facts |= {"distance": run.clip, "steps_done": int(steps_done), "proven": False}
    else:
        facts["clip"] = run.clip
    if isinstance(options, UlsOptions):
        facts["weighting"] = options.weighting
    if context.allowance.sampling and context.allowance.sampling.records:
        facts["records"] = context.allowance.sampling.records
    head = options.learner == "head"
    return {
        "kind": "teacher" if head else "model",
        "train_with": "soft",
        "privacy": {
            "accounting": f"{_ACCOUNTING[kind.name]}, {context.allowance.allowed} per "
            f"{context.policy.unit}" + cards.describe_joint_price(context.policy, kind.name)
        },
        "training": facts,
        "not_protected": [] if head else [DISCRETE],
    }


def sections(card: Mapping[str, Any]) -> Iterator[Section]:
    """Of a run: how it was sampled, its noise, and what is published of it."""
    run, unit = card["training"], card["privacy"]["unit"]
    words = [
        f"A model learned in {run['steps']:,} steps. In each, {run['sampled']} were drawn by "
        "secret coins, what each contributed was bounded, and noise was added to the sum; every "
        f"{unit} is charged the whole run, drawn or not. The labels of this release are the "
        "model's own."
    ]
    if run.get("proven") is False:
        words.append(
            "The guarantee of this mechanism is as published, and NOT PROVEN: this release rests "
            "on it because its policy accepts that."
        )
        done = run["steps_done"]
        if done < run["steps"]:
            words.append(f"It halted after {done:,} steps: a cohort was not concentrated.")
    yield Section(
        "training",
        "A model trained under differential privacy",
        tuple(words),
        facts=(
            ("sampling probability", f"{run['sampling_probability']:.4g}"),
            ("steps", f"{run['steps']:,}"),
            ("noise multiplier", f"{run['noise_multiplier']:.4f}"),
            ("noise", run["noise_drawn"]),
        ),
    )
