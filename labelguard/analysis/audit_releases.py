"""Whole releases of synthetic labels: what can be seen of one labeler from outside.

Every labeler of a survey compares the same pairs, and prefers the response with the higher score.
In the second world labeler 0 prefers the other one; in the third, every pair is a tie to them.
Checks:

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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labelguard.analysis import audit_bounds as bounds
from labelguard.analysis.audit_bounds import Check
from labelguard.mechanisms.noise import Noise
from labelguard.project.project import STATE, Project
from labelguard.text import Progress

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from labelguard.release.writer import Release

Floats = NDArray[np.float64]

WORLDS = ("as everybody", "against them", "ties")
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
    """How many labelers, and how many pairs each compares; `seed` decides which text is better."""

    labelers: int
    labels: int
    seed: int

    @classmethod
    def of_randomized_response(cls, labels: int, seed: int) -> Survey:
        """Many labelers, so that flips can be counted."""
        return cls(max(-(-_ROWS // labels), 2), labels, seed)

    @classmethod
    def of_statistic(cls, labels: int, seed: int) -> Survey:
        """Few labelers: noise covers one, however many there are."""
        return cls(_FEW_LABELERS, labels, seed)

    def table(self, world: str) -> pa.Table:
        """The labels of a world, in the layout (prompt, chosen, rejected, tie)."""
        import pyarrow as pa

        labeler = np.repeat(np.arange(self.labelers), self.labels)
        item = np.tile(np.arange(self.labels), self.labelers)
        canary = labeler == 0
        better = np.random.default_rng(self.seed).integers(0, 2, self.labels)[item]
        against = canary & (world == "against them")
        chosen = np.where(against, 1 - better, better)
        return pa.table(
            {
                "labeler_id": labeler,
                "prompt": _numbered("question ", item),
                "chosen": _numbered("answer ", 2 * item + chosen),
                "rejected": _numbered("answer ", 2 * item + 1 - chosen),
                "tie": canary & (world == "ties"),
                "score_chosen": np.where(against, 0.0, 1.0),
                "score_rejected": np.where(against, 1.0, 0.0),
            }
        )

    def better(self) -> pl.DataFrame:
        """Which answer everyone but the canary prefers."""
        import polars as pl

        rows = self.table(WORLDS[0]).slice(0, self.labels)
        return pl.DataFrame({"prompt": rows["prompt"], "better": rows["chosen"]})


def _numbered(word: str, numbers: NDArray[np.int64]) -> NDArray[np.str_]:
    return np.char.add(word, numbers.astype(str))


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
        """An empty project with fresh keys."""
        from labelguard.keys.keyring import KeyRing
        from labelguard.ledger.ledger import Ledger
        from labelguard.ledger.policies import Ceiling

        project = cls(directory / STATE)
        for path in (project.releases, project.released, project.quarantine):
            path.mkdir(parents=True, mode=0o700)
        keys, anything = KeyRing.create(project.keys), Ceiling(sys.float_info.max, 1 - 2**-53)
        Ledger.create(project.ledger_url, keys, project.witnesses, anything)
        return project


@dataclass(frozen=True)
class Seen:
    """What a release shows: its rows, its counts and, of a statistic, the value and its noise."""

    rows: pl.DataFrame
    counts: Mapping[str, Any]
    statistic: float = math.nan
    noise: float = math.nan

    @classmethod
    def of(cls, release: Release) -> Seen:
        """Read before the directory goes."""
        from labelguard.release.head import FILE, Head
        from labelguard.release.writer import load

        rows, counts = load(release), release.card["counts"]
        if not (release.path / FILE).exists():
            return cls(rows, counts)
        head = Head.load(release.path)
        assert head.statistic is not None
        return cls(rows, counts, float(head.statistic[0]), head.noise)

    def contents(self) -> pl.DataFrame:
        """How often each prompt comes with each two responses, whichever is preferred."""
        import polars as pl

        sides = (pl.min_horizontal("chosen", "rejected"), pl.max_horizontal("chosen", "rejected"))
        keyed = self.rows.select("prompt", first=sides[0], second=sides[1])
        return keyed.group_by("prompt", "first", "second").len().sort("prompt", "first", "second")

    def ids(self) -> pl.DataFrame:
        """Ids and prompts in the order of the release."""
        return self.rows.select("item_id", "prompt")


def released(survey: Survey, world: str, allow: str | None = None, **options: Any) -> Seen:
    """One whole release of a world, in a project of its own; under a policy that allows `allow`."""
    from labelguard.project import policies
    from labelguard.release.pipeline import privatize

    with tempfile.TemporaryDirectory(prefix="labelguard-audit-") as directory:
        project = _Scratch.create(Path(directory))
        if allow:
            # They belong to a policy, so the release asks for the same.
            names = ("epsilon", "delta", "public_columns")
            fixed = {name: options[name] for name in names}
            policies.new("audit", **fixed, allow=[allow], project=project)
            policies.activate("audit", project)
        table = survey.table(world)
        return Seen.of(privatize(table, project=project, accept_delta=True, **options))


def check_randomized_response(
    survey: Survey, epsilon: float, delta: float, runs: int, alpha: float, progress: Progress
) -> list[Check]:
    """`presence`, `order`, and `end to end` from the flips of released labels."""
    import polars as pl

    options: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
    options["max_labels_per_labeler"] = survey.labels
    worlds = _release_worlds(survey, 1, progress, **options)
    like = worlds[WORLDS[0]]
    like += [released(survey, WORLDS[0], **options) for _ in range(runs - 1)]
    rows = pl.concat([seen.rows for seen in like]).join(survey.better(), on="prompt")
    flips = int((rows["chosen"] != rows["better"]).sum())
    bound = bounds.epsilon_of_flips(flips, rows.height, survey.labels, delta, alpha)
    detail = f"{flips / rows.height:.5f} of {rows.height:,} released labels flipped"
    return [*_public(worlds), Check("end to end", bound, detail)]


def check_statistic(
    survey: Survey, epsilon: float, delta: float, runs: int, alpha: float, progress: Progress
) -> list[Check]:
    """`presence`, `order`, and `end to end` from released statistics with Gaussian noise.

    The noise is once taken as the release states it and, from more than one run, once estimated:
    the first finds sums that move too far, the second noise that is not there.
    """
    options = {"mechanism": "statistic", "epsilon": epsilon, "delta": delta, **SHAPE}
    options["allow"] = "statistic:releases=1"  # ball noise: check_ball
    worlds = _release_worlds(survey, runs, progress, **options)
    one, other = (np.array([seen.statistic for seen in worlds[world]]) for world in WORLDS[:2])
    noise = worlds[WORLDS[0]][0].noise
    bound = bounds.epsilon_of_means(one, other, delta, alpha / 2, noise)
    if runs > 1:
        bound = max(bound, bounds.epsilon_of_means(one, other, delta, alpha / 2))
    apart = (one.mean() - other.mean()) / noise
    detail = f"means {apart:.2f} of the noise apart, taken as stated; {runs} of each world"
    return [*_public(worlds), Check("end to end", bound, detail)]


def _release_worlds(
    survey: Survey, runs: int, progress: Progress, **options: Any
) -> dict[str, list[Seen]]:
    """Releases of every world, `runs` of each but the last."""
    worlds: dict[str, list[Seen]] = {}
    for number, world in enumerate(WORLDS):
        progress("releasing synthetic labels", number / len(WORLDS))
        repeated = runs if world != WORLDS[-1] else 1
        worlds[world] = [released(survey, world, **options) for _ in range(repeated)]
    return worlds


def _public(worlds: Mapping[str, list[Seen]]) -> list[Check]:
    """`presence` and `order`: neither has any noise, so that one difference is a proof."""
    first, *rest = [found[0] for found in worlds.values()]
    present = all(
        first.contents().equals(seen.contents()) and first.counts == seen.counts for seen in rest
    )
    ordered = all(
        seen.rows.height != first.rows.height or first.ids().equals(seen.ids()) for seen in rest
    )
    rows = f"{first.rows.height:,} released rows"
    return [
        Check("presence", 0.0 if present else math.inf, f"contents and counts of {rows}"),
        Check("order", 0.0 if ordered else math.inf, f"ids and order of {rows}"),
    ]


def check_ball(
    survey: Survey, epsilon: float, delta: float, runs: int, alpha: float, progress: Progress
) -> Check:
    """`ball end to end`: both worlds released `runs` times; noise is looked at from two runs on.

    The policy pays for ball noise in BALL dimensions; one coordinate of it is released, the others
    are surplus. The noise is once taken as the release states it, which finds sums that move too
    far for it, and once looked at, which finds noise that is not there: of k releases of one world
    the statistics are nearly the same, where noise of the stated scale would seldom let them be.
    """
    allow = f"statistic:releases=1,ball={BALL}"
    options = {"mechanism": "statistic", "epsilon": epsilon, "delta": delta, **SHAPE}
    worlds = []
    for number, world in enumerate(WORLDS[:2]):
        progress("releasing synthetic labels with ball noise", number / 2)
        worlds.append([released(survey, world, allow, **options) for _ in range(runs)])
    one, other = (np.array([seen.statistic for seen in found]) for found in worlds)
    scale = worlds[0][0].noise / Noise("ball", 1.0, BALL).deviation(1)
    apart = distance(one, other, scale, alpha / 2)
    close = chance_of_closeness((one, other), scale)
    missing = close < alpha / 2
    bound = math.inf if missing else bounds.epsilon_of_ball(apart, delta, BALL)
    detail = (
        f"means {abs(one.mean() - other.mean()) / scale:.2f} of the scale apart, taken as stated; "
        f"{runs} of each world" + (": noise of the stated scale is missing" if missing else "")
    )
    return Check("ball end to end", bound, detail)


def distance(one: Floats, other: Floats, scale: float, alpha: float) -> float:
    """How far the sums of two worlds are apart at least, in scales; 0 if they may be equal.

    No coordinate is longer than its radius, and the radii of all releases sum up to a Gamma
    variable, BALL for each.
    """
    from scipy.special import gammainccinv

    radii = float(gammainccinv(BALL * (len(one) + len(other)), alpha))
    return max(abs(float(one.mean() - other.mean())) / scale - radii / len(one), 0.0)


def chance_of_closeness(worlds: tuple[Floats, ...], scale: float) -> float:
    """How likely, at most, releases of each world are as close to its first one as they are.

    Given the first, the others fall into an interval of 2x with a probability of at most 2x times
    the peak of the density, each on its own; that of a coordinate of ball noise in d dimensions has
    its peak at 0: Γ(d/2) / (2 √π Γ((d+1)/2) s), as it is a normal variable of variance 2W, W of law
    Gamma((d+1)/2, s²).
    """
    peak = math.gamma(BALL / 2) / (2 * math.sqrt(math.pi) * math.gamma((BALL + 1) / 2))
    away = np.concatenate([np.abs(found[1:] - found[0]) for found in worlds])
    if not len(away):
        return 1.0
    return float(min(2 * peak * away.max() / scale, 1.0) ** len(away))
