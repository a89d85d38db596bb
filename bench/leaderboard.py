"""How often a leaderboard's intervals hold, how wide they are, and whether its order is right.

    python bench/leaderboard.py                 # simulated judges who differ
    python bench/leaderboard.py --quick
    python bench/leaderboard.py --data DIR      # also the order of real systems

Each judge has a strength of their own for each system, of standard deviation `taste` (log-odds)
around the common one. *Coverage* is the share of scores within their 95% interval, of the score
that all judges together answer by; *wrong order* how often any rank of a board claims one that is
false (5% at most, since ranks hold together); *information* what the information matrix alone
covers, of the fit without clip, ridge or design effect. *tau* is Kendall's, of the released order
with that of all labels without privacy.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from _measure import report
from numpy.typing import NDArray
from scipy.stats import kendalltau

from labelguard.accounting import ball, gaussian
from labelguard.analysis.leaderboard import ELO, MEAN, Standing, rank_sources
from labelguard.learning.features import Group
from labelguard.learning.heads import fit_statistic
from labelguard.mechanisms import statistic
from labelguard.mechanisms.geometry import Basis, Shape, basis, spectrum
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Bounds, Rows
from labelguard.mechanisms.tails import ReleasedNoise
from labelguard.release.head import Head, Window, fit
from labelguard.release.mechanisms import statistic_summary
from labelguard.simulation import tie_probability

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 3.0)
TASTES = (0.0, 0.5, 1.0)
SPREAD = 0.8
TIES = 0.4
_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(21)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Comparisons of systems: labels less ½, and true scores in log-odds if they are known."""

    names: tuple[str, ...]
    x: NDArray[np.float32]
    rows: Rows
    half: Floats
    true: Floats | None = None

    def released(self, noise: Noise, rng: np.random.Generator) -> Head:
        """The head of a statistic release, as `privatize` makes it."""
        systems = len(self.names)
        shape = Shape(systems - 1, 0.5, 1e-3, 0.5, 3.0)
        counts = np.bincount(self.rows.pair, minlength=len(self.x))
        axes = basis(spectrum(self.x, counts), shape)
        z = axes.coordinates(self.x)
        bounds = statistic.bounds(z, self.rows, shape.clip_quantile)
        window = self._window(z, bounds, noise, rng)
        coefficients, total, deviation = fit([window], axes, shape)
        about = statistic_summary.describe_head(
            self._groups(), self.x, [window], shape, axes, coefficients
        )
        features = "source:model"
        return Head(features, "", {}, shape, axes, coefficients, total, deviation, summary=about)

    def _groups(self) -> tuple[Group, ...]:
        return (Group("source:model", 0, len(self.names), self.names, None),)

    def _window(
        self, z: NDArray[np.float32], bounds: Bounds, noise: Noise, rng: np.random.Generator
    ) -> Window:
        step = np.ldexp(bounds.sensitivity, -statistic.STEP_BITS)
        total = statistic.clipped_sum(z, self.rows, self.half, bounds, float(step)) * step
        weight = statistic.pair_weights(self.rows, bounds, len(z))
        used = np.flatnonzero(weight)
        components = z.shape[1]
        deviation = noise.deviation(components) * bounds.sensitivity
        drawn = ReleasedNoise(noise.kind, deviation, noise.least).draws(components, rng, 1)[0]
        return Window(
            total + drawn,
            deviation,
            z[used],
            weight[used],
            bounds.clip,
            bounds.sensitivity,
            kind=noise.kind,
            least=noise.least,
            **statistic_summary.describe_window(self.x, z, self.rows, bounds, used, self._groups()),
        )

    def plain(self) -> Floats:
        """Scores (systems,) in points from all labels, without privacy."""
        weight = np.bincount(self.rows.pair, minlength=len(self.x)).astype(float)
        total = np.bincount(self.rows.pair, self.half, len(self.x)) @ self.x.astype(float)
        return ELO * fit_statistic(self.x, weight, total, 1e-3) * float(np.abs(self.x).max())


def simulated(systems: int, judges: int, taste: float, seed: int) -> World:
    """Judges who compare systems, each by a taste of their own; about 40 labels a judge."""
    rng = np.random.default_rng([seed, systems, judges, round(10 * taste)])
    counts = np.maximum(rng.lognormal(np.log(40), 0.8, judges).astype(int), 3)
    one, other = np.triu_indices(systems, 1)
    x = np.zeros((len(one), systems), np.float32)
    x[np.arange(len(one)), one], x[np.arange(len(one)), other] = 1, -1
    unit = np.repeat(np.arange(judges), counts)
    rows = Rows(rng.integers(len(one), size=len(unit)), unit, judges)
    strength = SPREAD * rng.normal(size=systems)
    own = strength + taste * rng.normal(size=(judges, systems))
    gap = own[unit, one[rows.pair]] - own[unit, other[rows.pair]]
    tied = rng.random(len(gap)) < tie_probability(gap, TIES)
    first = rng.random(len(gap)) < 1 / (1 + np.exp(-gap))
    # What all judges answer, of a tie one half each.
    gaps = (strength[one] - strength[other])[:, None] + taste * np.sqrt(2) * _NODES
    gain = (1 - tie_probability(gaps, TIES)) * np.tanh(gaps / 2) / 2
    expected = gain @ _NODE_WEIGHTS / _NODE_WEIGHTS.sum()
    true = fit_statistic(x, np.ones(len(x)), expected @ x.astype(float), 1e-6)
    names = tuple(f"system {at:02d}" for at in range(systems))
    half = np.where(tied, 0.0, first - 0.5)
    return World(names, x / np.sqrt(2, dtype=np.float32), rows, half, true - true.mean())


def noise_of(kind: str, epsilon: float, components: int) -> Noise:
    """The noise of one release at ε."""
    if kind == "ball":
        return Noise("ball", ball.calibrate(epsilon, DELTA, components), components)
    return Noise("gaussian", gaussian.calibrate(epsilon, DELTA, 1))


def judged(world: World, noise: Noise, seed: int) -> dict[str, float]:
    """What one release of a simulated world gives."""
    assert world.true is not None
    head = world.released(noise, np.random.default_rng([seed, 1]))
    [board] = rank_sources(head).boards
    of = {one.source: one for one in board.standings}
    standings = [of[name] for name in world.names]
    true = MEAN + ELO * world.true
    score = np.array([one.score for one in standings])
    covered = [one.low <= t <= one.high for one, t in zip(standings, true, strict=True)]
    below = score - np.array([one.low for one in standings])
    return {
        "coverage": float(np.mean(covered)),
        "first": float(covered[0]),
        "half_width": float(below.mean()),
        "wrong_order": float(_wrong(standings, true)),
        "information": _information(world, head, true),
        "tau": float(kendalltau(score, world.plain()).statistic),
        "tau_true": float(kendalltau(score, true).statistic),
    }


def _wrong(standings: list[Standing], true: Floats) -> bool:
    """Whether some true rank is outside of what the board says is possible."""
    rank = 1 + (true[:, None] > true).sum(axis=0)
    return any(not one.rank <= r <= one.worst_rank for one, r in zip(standings, rank, strict=True))


def _information(world: World, head: Head, true: Floats) -> float:
    """Coverage by the inverse information and the noise alone, around the plain fit."""
    assert head.summary and head.summary.source_scores and head.statistic is not None
    z = head.basis.coordinates(world.x)
    bounds = statistic.bounds(z, world.rows, head.shape.clip_quantile)
    weight = statistic.pair_weights(world.rows, bounds, len(z))
    theta = fit_statistic(z, weight, head.statistic, 1e-3)
    bend = weight / 4 / np.cosh(z @ theta / 2) ** 2
    curvature = (z * bend[:, None]).T @ z + 1e-9 * np.eye(len(theta))
    inverse = np.linalg.inv(curvature)
    covariance = inverse + head.noise**2 * inverse @ inverse
    directions = _directions(head.basis, len(world.names))
    wide = 1.96 * np.sqrt(np.einsum("in,ij,jn->n", directions, covariance, directions))
    return float(np.mean(np.abs(MEAN + theta @ directions - true) <= wide))


def _directions(axes: Basis, systems: int) -> Floats:
    """θ · directions are scores in points around their mean."""
    directions = ELO * axes.projection.T / np.sqrt(2)
    return np.asarray(directions - directions.mean(axis=1, keepdims=True))


def _run(task: tuple[int, int, float, str, float, int]) -> dict[str, float]:
    systems, judges, taste, kind, epsilon, seed = task
    world = simulated(systems, judges, taste, seed)
    return judged(world, noise_of(kind, epsilon, systems - 1), seed)


def settings(quick: bool) -> Iterator[tuple[int, int, float, str, float]]:
    """Systems, judges, taste, kind of noise, ε."""
    for systems, judges in ((6, 50), (20, 200)):
        for taste in TASTES:
            for kind in ("gaussian", "ball"):
                for epsilon in (1.0,) if quick else EPSILONS:
                    yield systems, judges, taste, kind, epsilon


def real(directory: Path) -> Iterator[tuple[str, World]]:
    """Six systems of each language pair, and all of the language models."""
    frame = pl.read_parquet(directory / "wmt15_pairs.parquet")
    single = ~(pl.col("response_a").str.contains("+", literal=True))
    single &= ~(pl.col("response_b").str.contains("+", literal=True))
    for (name,), part in sorted(frame.filter(single).group_by("lang_pair")):
        often = pl.concat([part["response_a"], part["response_b"]]).value_counts(sort=True)
        six = often["response_a"].head(6).to_list()
        both = pl.col("response_a").is_in(six) & pl.col("response_b").is_in(six)
        yield f"wmt15 {name}", _world(part.filter(both), "response_a", "response_b")
    frame = pl.read_parquet(directory / "llmfao_crowd.parquet")
    yield "llmfao", _world(frame, "model_a", "model_b")


def _world(frame: pl.DataFrame, a: str, b: str) -> World:
    """The comparisons of a table with columns labeler_id, label, tie and two of systems."""
    frame = frame.filter(pl.col(a) != pl.col(b))
    names = sorted({*frame[a], *frame[b]})
    code = {name: at for at, name in enumerate(names)}
    one = frame[a].replace_strict(code).to_numpy()
    other = frame[b].replace_strict(code).to_numpy()
    sign = np.where(one < other, 1.0, -1.0)
    ends = np.stack([np.minimum(one, other), np.maximum(one, other)], axis=1)
    pairs, pair = np.unique(ends, axis=0, return_inverse=True)
    x = np.zeros((len(pairs), len(names)), np.float32)
    x[np.arange(len(pairs)), pairs[:, 0]], x[np.arange(len(pairs)), pairs[:, 1]] = 1, -1
    unit = np.unique(frame["labeler_id"].to_numpy(), return_inverse=True)[1]
    label = frame["label"].fill_null(0).to_numpy() - 0.5
    half = np.where(frame["tie"].to_numpy(), 0.0, sign * label)
    rows = Rows(pair.ravel().astype(np.intp), unit.astype(np.intp), int(unit.max()) + 1)
    return World(tuple(names), x / np.sqrt(2, dtype=np.float32), rows, half)


def _order(task: tuple[World, str, float, int]) -> float:
    """Kendall's tau of one release with the order without privacy."""
    world, kind, epsilon, seed = task
    noise = noise_of(kind, epsilon, len(world.names) - 1)
    head = world.released(noise, np.random.default_rng(seed))
    score = {
        one.source: one.score for board in rank_sources(head).boards for one in board.standings
    }
    plain = dict(zip(world.names, world.plain(), strict=True))
    shared = sorted(score)
    return float(kendalltau([score[n] for n in shared], [plain[n] for n in shared]).statistic)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="directory of the real data sets")
    parser.add_argument("--quick", action="store_true", help="few repetitions, ε = 1 alone")
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--only-data", action="store_true", help="no simulation")
    options = parser.parse_args()
    repetitions = 10 if options.quick else options.repetitions
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows: list[list[Any]] = []
        for setting in [] if options.only_data else settings(options.quick):
            few = max(repetitions // (4 if setting[0] > 6 else 1), 2)
            found = list(pool.map(_run, [(*setting, seed) for seed in range(few)]))
            means = {
                name: round(float(np.mean([one[name] for one in found])), 3)
                for name in found[0]
                if name != "first"
            }
            rows.append([*setting, few, *means.values()])
            print(rows[-1], flush=True)
        if rows:
            columns = ["systems", "judges", "taste", "noise", "epsilon", "repetitions", *means]
            report("leaderboard", columns, rows)
        if options.data:
            rows = []
            for name, world in real(options.data):
                for epsilon in EPSILONS:
                    cells: list[Any] = [name, len(world.names), world.rows.units, epsilon]
                    for kind in ("gaussian", "ball"):
                        tasks = [(world, kind, epsilon, seed) for seed in range(8)]
                        cells.append(round(float(np.mean(list(pool.map(_order, tasks)))), 2))
                    rows.append(cells)
            columns = ["data", "systems", "judges", "epsilon", "tau gaussian", "tau ball"]
            report("leaderboard order", columns, rows)


if __name__ == "__main__":
    main()
