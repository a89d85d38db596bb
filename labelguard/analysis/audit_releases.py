"""Whole releases of synthetic labels: what can be seen of one labeler from outside.

Every labeler of a survey compares the same pairs (or their own), and prefers the response with the
higher score. In the second world labeler 0 prefers the other one; in the third, every pair is a tie
to them. Checks:

- `presence`: the same contents are released, as often, with the same counts, in all three;
- `order`: the same contents have the same ids, and come in the same order;
- `end to end`: flips of released labels, or distances of released statistics, as they should be.

Everything happens in temporary directories with keys and ledgers of their own.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import gammainccinv

from labelguard.accounting.blocks import find_block
from labelguard.accounting.components import RandomizedBlocks
from labelguard.analysis import audit_bounds as bounds
from labelguard.analysis.audit_bounds import Check
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import Ceiling
from labelguard.mechanisms.noise import Noise
from labelguard.project import policies
from labelguard.project.project import STATE, Project
from labelguard.release.head import FILE, Head
from labelguard.release.privatize import privatize
from labelguard.release.writer import load
from labelguard.text import Progress

Floats = NDArray[np.float64]

WORLDS = ("as everybody", "against them", "ties")
REVERSED = "everybody reversed"
_ROWS = 1 << 14
_FEW_LABELERS = 12
# Dimensions of ball noise of which one coordinate is released.
BALL = 4
SHAPE: Mapping[str, Any] = {
    "features": "columns:score",
    "public_columns": ("score",),
    "components": 1,
    "whitening": 0.0,
    "floor": 1.0,
    "clip_quantile": 0.5,
    "ridge": 1.0,
}


@dataclass(frozen=True)
class Survey:
    """Labels of `labelers` who compare `labels` pairs each; `seed` decides which text is better."""

    labelers: int
    labels: int
    seed: int
    # whether each labeler is asked about pairs of their own
    apart: bool = False

    def make_labels(self, world: str) -> pa.Table:
        """Return the labels of a world, in the layout (prompt, chosen, rejected, tie)."""
        labeler = np.repeat(np.arange(self.labelers), self.labels)
        item = np.tile(np.arange(self.labels), self.labelers)
        canary = labeler == 0
        better = np.random.default_rng(self.seed).integers(0, 2, self.labels)[item]
        against = canary & (world == "against them") | (world == REVERSED)
        chosen = np.where(against, 1 - better, better)
        if self.apart:
            item = item + labeler * self.labels
        return pa.table(
            {
                "labeler_id": labeler,
                "prompt": np.char.add("question ", item.astype(str)),
                "chosen": np.char.add("answer ", (2 * item + chosen).astype(str)),
                "rejected": np.char.add("answer ", (2 * item + 1 - chosen).astype(str)),
                "tie": canary & (world == "ties"),
                "score_chosen": np.where(against, 0.0, 1.0),
                "score_rejected": np.where(against, 1.0, 0.0),
            }
        )

    def list_preferred_answers(self) -> pl.DataFrame:
        """Return the answer that everyone but the canary prefers to each prompt."""
        rows = self.make_labels(WORLDS[0])
        columns = {"prompt": rows["prompt"], "better": rows["chosen"]}
        return pl.DataFrame(columns | {"labeler": rows["labeler_id"]})


class _Scratch(Project):
    """A project with keys and ledger in its own directory, whatever the environment says."""

    @property
    def keys(self) -> Path:
        return self.state / "keys"

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.state / 'ledger.sqlite3'}"

    @classmethod
    def create(cls, directory: Path) -> _Scratch:
        """Create an empty project with fresh keys."""
        project = cls(directory / STATE)
        for path in (project.releases, project.private_maps, project.quarantine):
            path.mkdir(parents=True, mode=0o700)
        keys, anything = KeyRing.create(project.keys), Ceiling(sys.float_info.max, 1 - 2**-53)
        Ledger.create(project.ledger_url, keys, anything)
        return project


@dataclass(frozen=True)
class ReleaseView:
    """The public part of a release: its rows and counts; of a statistic, its value and noise."""

    rows: pl.DataFrame
    counts: Mapping[str, Any]
    statistic: float
    noise: float

    def count_contents(self) -> pl.DataFrame:
        """Count the rows of each prompt and two responses, whichever is preferred."""
        sides = (pl.min_horizontal("chosen", "rejected"), pl.max_horizontal("chosen", "rejected"))
        keyed = self.rows.select("prompt", first=sides[0], second=sides[1])
        return keyed.group_by("prompt", "first", "second").len().sort("prompt", "first", "second")

    def list_ids_in_order(self) -> pl.DataFrame:
        """Return ids and prompts in the order of the release."""
        return self.rows.select("item_id", "prompt")


def _release_world(
    survey: Survey, world: str, allow: str | None = None, **options: Any
) -> ReleaseView:
    """Release one world's labels in a new project; `allow` is an allowance of its policy."""
    with tempfile.TemporaryDirectory(prefix="labelguard-audit-") as directory:
        project = _Scratch.create(Path(directory))
        if allow:
            # They belong to a policy, so the release asks for the same.
            names = ("epsilon", "delta", "public_columns")
            fixed = {name: options[name] for name in names}
            policies.new("audit", **fixed, allow=[allow], project=project)
            policies.activate("audit", project)
        labels = survey.make_labels(world)
        release = privatize(labels, project=project, accept_delta=True, **options)
        value = noise = math.nan
        if (release.path / FILE).exists():
            head = Head.load(release.path)
            assert head.statistic is not None
            value, noise = float(head.statistic[0]), head.noise
        return ReleaseView(load(release), release.card["counts"], value, noise)


@dataclass(frozen=True)
class ReleaseAudit:
    """Checks of `runs` whole releases of each world, at the price of (epsilon, delta).

    Each check with noise is wrong with a probability of at most `alpha`.
    """

    labels: int
    seed: int
    epsilon: float
    delta: float
    runs: int
    alpha: float
    progress: Progress

    def check_randomized_response(self) -> list[Check]:
        """Run `presence`, `order`, and `end to end` from the flips of released labels."""
        # Many labelers, so that the answers of each can be counted.
        labelers = max(-(-_ROWS // self.labels), 2)
        survey = Survey(labelers, self.labels, self.seed, apart=True)
        worlds = self._release_worlds(survey, (self.runs, 1, 1), mechanism="rr")
        budget = {"epsilon": self.epsilon, "delta": self.delta}
        other = [
            _release_world(survey, REVERSED, None, mechanism="rr", **budget)
            for _ in range(self.runs)
        ]
        law = find_block(
            RandomizedBlocks.calibrate(self.epsilon, self.delta, 1).threshold, self.labels
        )
        likely = self.labels - law.likely_change_limit
        first, second = (
            int((_count_better(survey, views) >= likely).sum()) for views in (worlds[0], other)
        )
        runs = self.runs * labelers
        bound = bounds.epsilon_of_events(first, second, runs, self.delta, self.alpha)
        detail = f"{likely} or more of {self.labels} labels as they were, {runs:,} labelers"
        return [*_compare_views(worlds), Check("end to end", bound, detail)]

    def check_statistic(self) -> list[Check]:
        """Run `presence`, `order`, and `end to end` from released statistics with Gaussian noise.

        The noise is once taken as the release states it and, from more than one run, once
        estimated: the first finds sums that move too far, the second noise that is not there.
        """
        worlds = self._release_statistics("statistic:releases=1", (self.runs, self.runs, 1))
        first, second = (np.array([view.statistic for view in views]) for views in worlds[:2])
        noise = worlds[0][0].noise
        bound = bounds.epsilon_of_means(first, second, self.delta, self.alpha / 2, noise)
        if self.runs > 1:
            estimated = bounds.epsilon_of_means(first, second, self.delta, self.alpha / 2)
            bound = max(bound, estimated)
        moved = (first.mean() - second.mean()) / noise
        detail = f"means {moved:.2f} stated deviations apart; {self.runs} releases per world"
        return [*_compare_views(worlds), Check("end to end", bound, detail)]

    def check_ball(self) -> Check:
        """Run `ball end to end` from released statistics with ball noise.

        The policy pays for noise in BALL dimensions; one coordinate of it is released, the others
        are surplus. The noise is once taken as the release states it, which finds sums that move
        too far for it, and, from two runs on, once tested, which finds noise that is not there: of
        k releases of one world the statistics are nearly the same, where noise of the stated scale
        would seldom let them be.
        """
        allow = f"statistic:releases=1,ball={BALL}"
        worlds = self._release_statistics(allow, (self.runs, self.runs))
        first, second = (np.array([view.statistic for view in views]) for views in worlds)
        scale = worlds[0][0].noise / Noise("ball", 1.0, BALL).deviation(1)
        moved = bound_ball_distance(first, second, scale, self.alpha / 2)
        is_missing = bound_closeness_probability((first, second), scale) < self.alpha / 2
        bound = math.inf if is_missing else bounds.epsilon_of_ball(moved, self.delta, BALL)
        distance = abs(first.mean() - second.mean()) / scale
        detail = f"means {distance:.2f} stated scales apart; {self.runs} releases per world"
        missing = ": noise of the stated scale is missing" if is_missing else ""
        return Check("ball end to end", bound, detail + missing)

    def _release_statistics(self, allow: str, runs: tuple[int, ...]) -> list[list[ReleaseView]]:
        # Few labelers: noise covers one, however many there are.
        survey = Survey(_FEW_LABELERS, self.labels, self.seed)
        return self._release_worlds(survey, runs, mechanism="statistic", allow=allow, **SHAPE)

    def _release_worlds(
        self, survey: Survey, runs: tuple[int, ...], **options: Any
    ) -> list[list[ReleaseView]]:
        """Release each world as often as `runs` says."""
        options |= {"epsilon": self.epsilon, "delta": self.delta}
        worlds = []
        for number, (world, repeated) in enumerate(zip(WORLDS, runs, strict=False)):
            self.progress("releasing synthetic labels", number / len(runs))
            worlds.append([_release_world(survey, world, **options) for _ in range(repeated)])
        return worlds


def _count_better(survey: Survey, views: list[ReleaseView]) -> pl.Series:
    """Count the released labels of each labeler and run that name the better answer."""
    rows = pl.concat([view.rows.with_columns(run=run) for run, view in enumerate(views)])
    rows = rows.join(survey.list_preferred_answers(), on="prompt")
    counts = rows.group_by("run", "labeler").agg((pl.col("chosen") == pl.col("better")).sum())
    return counts["chosen"]


def _compare_views(worlds: list[list[ReleaseView]]) -> list[Check]:
    """Run `presence` and `order`: neither has any noise, so that one difference is a proof."""
    first, *rest = [views[0] for views in worlds]
    same_contents = all(
        first.count_contents().equals(view.count_contents()) and first.counts == view.counts
        for view in rest
    )
    same_order = all(
        view.rows.height != first.rows.height
        or first.list_ids_in_order().equals(view.list_ids_in_order())
        for view in rest
    )
    rows = f"{first.rows.height:,} released rows"
    return [
        Check("presence", 0.0 if same_contents else math.inf, f"contents and counts of {rows}"),
        Check("order", 0.0 if same_order else math.inf, f"ids and order of {rows}"),
    ]


def bound_ball_distance(first: Floats, second: Floats, scale: float, alpha: float) -> float:
    """Return a lower limit of the distance of two worlds' sums, in scales; 0 if they may be equal.

    No coordinate is longer than its radius, and the radii of all releases sum up to a Gamma
    variable, BALL for each.
    """
    radii = float(gammainccinv(BALL * (len(first) + len(second)), alpha))
    return max(abs(float(first.mean() - second.mean())) / scale - radii / len(first), 0.0)


def bound_closeness_probability(worlds: tuple[Floats, ...], scale: float) -> float:
    """Return an upper limit of the probability that releases of each world are as close as here.

    Given the first, the others fall into an interval of 2x with a probability of at most 2x times
    the peak of the density, each on its own; that of a coordinate of ball noise in d dimensions has
    its peak at 0: Γ(d/2) / (2 √π Γ((d+1)/2) s), as it is a normal variable of variance 2W, W of law
    Gamma((d+1)/2, s²).
    """
    peak = math.gamma(BALL / 2) / (2 * math.sqrt(math.pi) * math.gamma((BALL + 1) / 2))
    away = np.concatenate([np.abs(values[1:] - values[0]) for values in worlds])
    if not len(away):
        return 1.0
    return float(min(2 * peak * away.max() / scale, 1.0) ** len(away))
