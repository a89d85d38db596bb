"""The kinds of events that a policy prices: what a use is, what it costs, what it is called.

Policies, ledger and cards name a kind (`rr`, `statistic`) and ask it here for everything in which
kinds differ. Kinds are the core's alone; a mechanism says which one it works on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from labelguard.budget.event_kind import (
    MOST_LABELS,
    AllowanceTerms,
    ClippedSums,
    EventKind,
    Price,
    Sampling,
    delta_of_finite_bits,
)
from labelguard.budget.label_values import Ties
from labelguard.errors import PolicyError
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard.accounting.components import Component


class RandomizedLabels(EventKind):
    """Labels answered by randomized response, which `rr` releases and `props` works on.

    A use is a block: new labels of one unit that a release draws together (`accounting.blocks`).
    """

    name = "rr"
    counts = "uses"
    noun = "randomized block"
    shortage_noun = "block"
    term = "block"
    form = "rr:uses=1, or rr:uses=50,block=1 (1: each label by itself)"
    default_ties = "coin"
    keeps_values = True

    def component(self, price: Price, count: int) -> Component:
        """Return so many blocks at a price."""
        from labelguard.accounting.components import RandomizedBlocks

        return RandomizedBlocks(**price, count=count)

    def make_noise_finder(
        self, allowance: AllowanceTerms
    ) -> Callable[[float, float, int], Component]:
        """Return the exact accountant: that of coins."""
        from labelguard.accounting.components import RandomizedBlocks

        return RandomizedBlocks.calibrate

    def check_allowance(self, allowance: AllowanceTerms) -> None:
        """A block has one kind of noise."""
        if allowance.ball is not None:
            raise PolicyError("ball noise is for statistic:releases=1 only, found it with rr")
        if allowance.sampling is not None:
            raise PolicyError("a sampling is of training runs only, found it with rr")
        if not 1 <= allowance.block <= MOST_LABELS:
            raise PolicyError(
                f"a block holds 1 to {MOST_LABELS:,} labels, found {allowance.block:,}"
            )

    def discretization_delta(self, epsilon: float, allowance: AllowanceTerms) -> float:
        """Nothing: the probability of every answer is rational, and priced as that."""
        return 0.0

    def ties_of(self, ties: Ties) -> Ties:
        """As the policy has it."""
        return ties

    def check_policy_terms(self, delta: float, ties: Ties, *, alone: bool) -> None:
        """Ties are labels, and add to no sum."""
        if ties == "zero":
            raise PolicyError("--ties zero is for policies of statistics alone")

    def allows_reuse_of_labels(self, state: str) -> bool:
        """Return True: what was drawn keeps its value, even in a release that was given up."""
        return True

    def describe_noise(self, price: Price) -> dict[str, Any]:
        """Return the probability that a label is flipped that is randomized by itself."""
        return {"flip_probability": price["threshold"] / 2**64}


class StatisticReleases(ClippedSums):
    """Noisy sums over all labels of a labeler, clipped."""

    name = "statistic"
    counts = "releases"
    noun = shortage_noun = "statistic release"
    term = "ball"
    form = "statistic:releases=12, or statistic:releases=1,ball=4 (4: COMPONENTS)"

    def component(self, price: Price, count: int) -> Component:
        """Gaussian noise, or ball noise, which has a scale."""
        from labelguard.accounting.components import Balls, Gaussians

        return (Balls if "scale" in price else Gaussians)(**price, count=count)

    def make_noise_finder(
        self, allowance: AllowanceTerms
    ) -> Callable[[float, float, int], Component]:
        """Their exact accountants."""
        from labelguard.accounting.components import Balls, Gaussians

        ball = allowance.ball
        return Gaussians.calibrate if ball is None else partial(Balls.calibrate, components=ball)

    def check_allowance(self, allowance: AllowanceTerms) -> None:
        """Ball noise is for one release in the policy's life: Gaussian noise composes better."""
        super().check_allowance(allowance)
        if allowance.sampling is not None:
            raise PolicyError("a sampling is of training runs only, found it with statistic")
        if allowance.ball is None:
            return
        if allowance.allowed != 1:
            raise PolicyError(
                "ball noise has a price for one statistic release in the life of a policy, found "
                f"{allowance.allowed}; allow statistic:releases=1,ball=K, or leave ball=K out: "
                "Gaussian noise is for any number"
            )
        if allowance.ball < 1:
            raise PolicyError(f"ball noise is for 1 component or more, found {allowance.ball}")

    def discretization_delta(self, epsilon: float, allowance: AllowanceTerms) -> float:
        """Return that of one draw."""
        return delta_of_finite_bits(epsilon)

    def allows_reuse_of_labels(self, state: str) -> bool:
        """Return False for a release that was given up, whose labels are in no sum."""
        return state != "abandoned"

    def describe_noise(self, price: Price) -> dict[str, Any]:
        """Return its kind, and the noise multiplier or the scale with the fewest components."""
        return {"noise": "ball" if "scale" in price else "gaussian", **price}


class TrainingRuns(ClippedSums):
    """Runs of one mechanism by noisy gradients: a model's own weights learn.

    A run is so many steps of a sum of clipped gradients, of sampled labelers or labels, with
    Gaussian noise. Its sampling belongs to the allowance, so that what runs is what is priced. Each
    labeler of the population is charged, whoever is sampled; every run learns from all labels of a
    labeler, released or not.
    """

    counts = "runs"
    counts_uses = False
    # A number beside q and steps that its price depends on: `records` where labels are sampled one
    # by one, of which a labeler has so many at most; `updates` of a step.
    further_term: ClassVar[str | None] = None
    # The component that prices it.
    run: ClassVar[str]

    def _component_class(self) -> Any:
        from labelguard.accounting import components

        return getattr(components, self.run)

    def component(self, price: Price, count: int) -> Component:
        """Return all steps of so many runs."""
        component: Component = self._component_class()(**price, count=count)
        return component

    def make_noise_finder(
        self, allowance: AllowanceTerms
    ) -> Callable[[float, float, int], Component]:
        """Return that of runs with this sampling."""
        sampling = allowance.sampling
        assert sampling is not None
        return partial(
            self._component_class().calibrate,
            sampling_probability=sampling.probability,
            steps=sampling.steps,
            **self._further_terms(sampling),
        )

    def _further_terms(self, sampling: Sampling) -> dict[str, Any]:
        """Return what its price depends on beside q and steps."""
        return (
            {self.further_term: getattr(sampling, self.further_term)} if self.further_term else {}
        )

    def parse_terms(self, terms: Mapping[str, str]) -> dict[str, Any]:
        """`q=0.2,steps=100`, and the further term of its kind, such as `records=8`."""
        known = {"q", "steps", self.further_term}
        super().parse_terms({name: value for name, value in terms.items() if name not in known})
        more, name = dict[str, int](), self.further_term
        if name and (name in terms or getattr(Sampling, name) is None):  # what has no usual value
            more = {name: int(terms[name])}
        return {"sampling": Sampling(float(terms["q"]), int(terms["steps"]), **more)}

    def format_terms(self, allowance: AllowanceTerms) -> dict[str, Any]:
        """Return the inverse of `parse_terms`."""
        sampling = allowance.sampling
        assert sampling is not None
        further = self._further_terms(sampling).items()
        unusual = {name: value for name, value in further if value != getattr(Sampling, name)}
        return {"q": repr(sampling.probability), "steps": sampling.steps, **unusual}

    def check_allowance(self, allowance: AllowanceTerms) -> None:
        """A run has a sampling, and Gaussian noise."""
        super().check_allowance(allowance)
        sampling = allowance.sampling
        if sampling is None or (sampling.records is None) == (self.further_term == "records"):
            raise PolicyError(f"a run of {self.name} is sampled: allow {self.form}")
        if allowance.ball is not None:
            raise PolicyError(f"ball noise is for statistic:releases=1 only, not for {self.name}")

    def discretization_delta(self, epsilon: float, allowance: AllowanceTerms) -> float:
        """Return that of a draw in every step, exact, or of a language model's, which has an
        end.
        """
        from labelguard.accounting import gaussian

        assert allowance.sampling is not None
        steps, updates = allowance.sampling.steps, allowance.sampling.updates
        beyond = gaussian.delta_of_truncation(gaussian.MOST_COORDINATES * steps, epsilon)
        return updates * (steps * delta_of_finite_bits(epsilon) + beyond)

    def allows_reuse_of_labels(self, state: str) -> bool:
        """Nothing: a run begins with the base model, and learns from all labels."""
        return False

    def describe_noise(self, price: Price) -> dict[str, Any]:
        """Return its noise multiplier, in clip norms, and its sampling."""
        names = ("noise_multiplier", "sampling_probability", "steps")
        return {"noise": "gaussian", **{name: price[name] for name in names}}


class UserWise(TrainingRuns):
    """User-wise DP-SGD (user-level-dp-finetuning, algorithm 2; aup-rlhf, algorithm 4)."""

    name, noun, shortage_noun, run = "uls", "uls run", "uls run", "Subsampled"
    form = "uls:runs=1,q=0.2,steps=100"


class RecordWise(TrainingRuns):
    """Example-level DP-SGD (user-level-dp-finetuning, algorithm 1): the smaller of two bounds."""

    name, noun, shortage_noun, run = "els", "els run", "els run", "SampledRecords"
    form = "els:runs=1,q=0.05,steps=100,records=8"
    further_term = "records"


class GroupPrivacy(TrainingRuns):
    """The same, at the bound of group privacy alone: a baseline."""

    name, noun, shortage_noun, run = "els-group", "els-group run", "els-group run", "Groups"
    form = "els-group:runs=1,q=0.05,steps=100,records=8"
    further_term = "records"


class AdaptiveUserWise(TrainingRuns):
    """Adaptive user-level DP-SGD (aup-rlhf, algorithm 2), priced as published: unproven."""

    name, noun, shortage_noun, run = "aup", "aup run", "aup run", "Unproven"
    form = "aup:runs=1,q=0.2,steps=100"
    proven = False


class WholeRecordStages(TrainingRuns):
    """Stages of an alignment on whole records: demonstrations, preferences or prompts.

    A use is one stage that a person has records in. Where one is allowed, everybody is in one part
    of the data, and all stages together cost what one does (parallel composition); where several
    are, the price is that of so many of them (adaptive composition).
    """

    name, counts, run = "records", "stages", "WholeRecords"
    noun = shortage_noun = "record stage"
    form = "records:stages=1,q=0.2,steps=50, or records:stages=3,q=0.2,steps=50,updates=4"
    adjacency = "zero_out"
    units = ("user", "record")
    further_term = "updates"

    def describe_noise(self, price: Price) -> dict[str, Any]:
        """With the updates of a step."""
        return super().describe_noise(price) | {"updates": price["updates"]}


RECORDS = WholeRecordStages()
ULS, ELS, ELS_GROUP, AUP = UserWise(), RecordWise(), GroupPrivacy(), AdaptiveUserWise()
TRAINING_RUNS: tuple[TrainingRuns, ...] = (ULS, ELS, ELS_GROUP, AUP)


RANDOMIZED_LABELS = RandomizedLabels()
STATISTIC_RELEASES = StatisticReleases()
EVENTS: Mapping[str, EventKind] = {
    event.name: event for event in (RANDOMIZED_LABELS, STATISTIC_RELEASES, *TRAINING_RUNS, RECORDS)
}


# How a project goes on whose statistic releases are used up.
ONE_MORE = (
    "another policy is paid on top, up to the project's ceiling (docs/budget.md): labelguard "
    "policy new NAME --epsilon E --delta D --allow statistic:releases=1, then labelguard policy "
    "activate NAME"
)


def find_event_kind(name: str) -> EventKind:
    """Return the kind of that name; `PolicyError` if there is none."""
    if name not in EVENTS:
        raise PolicyError(
            f"an allowance is for {' or '.join(EVENTS)}, found {name!r}; "
            "write rr:uses=1 or statistic:releases=12"
        )
    return EVENTS[name]


def describe_uses(uses: Mapping[str, int]) -> str:
    """Uses by kind of event, for people: 3 randomized blocks and 6 statistic releases."""
    parts = [
        pluralize(number, find_event_kind(name).noun) for name, number in uses.items() if number
    ]
    return " and ".join(parts) or "nothing"


def choose_default_ties(names: Iterable[str]) -> Ties:
    """Return what becomes of ties, unless something else is asked for, where all of these are
    allowed.
    """
    ties = {find_event_kind(name).default_ties for name in names}
    return ties.pop() if len(ties) == 1 else RANDOMIZED_LABELS.default_ties


def parse_allowance(text: str) -> tuple[str, int, dict[str, Any]]:
    """`rr:uses=2` as ("rr", 2, {}), `statistic:releases=1,ball=4` as ("statistic", 1, …).

    The third are further fields of an `Allowance`. Raises `PolicyError` for anything else.
    """
    for event in EVENTS.values():
        pattern = rf"{event.name}:{event.counts}=([0-9]+)((?:,[a-z]+=[0-9.e-]+)*)"
        match = re.fullmatch(pattern, text.strip(), re.ASCII)
        if match:
            terms = [term.partition("=")[::2] for term in match[2].split(",")[1:]]
            if len(dict(terms)) < len(terms):
                break
            try:
                return event.name, int(match[1]), event.parse_terms(dict(terms))
            except (ValueError, KeyError):
                raise PolicyError(f"--allow expects {event.form}, found {text!r}") from None
    forms = "; ".join(event.form for event in EVENTS.values())
    raise PolicyError(f"--allow expects one of: {forms}; found {text!r}")


def format_allowance(allowance: AllowanceTerms) -> str:
    """Return the inverse of `parse_allowance`."""
    event = find_event_kind(allowance.event)
    terms = {event.counts: allowance.allowed, **event.format_terms(allowance)}
    return f"{event.name}:" + ",".join(f"{name}={value}" for name, value in terms.items())
