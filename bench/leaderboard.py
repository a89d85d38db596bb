"""How often a leaderboard's intervals hold, how wide they are, and whether its order is right.

    python bench/leaderboard.py                 # simulated judges who differ
    python bench/leaderboard.py --quick
    python bench/leaderboard.py --earlier DIR   # beside a checkout of an earlier version
    python bench/leaderboard.py --data DIR      # also the order of real systems

Judges differ in what they think of systems, by families: not at all (`same`); normally, by 1
log-odd on a typical pair (`normal`); in two camps, by 1.4 (`camps`); as Student's t with 2.5
degrees of freedom (`heavy`); and a little, but 15% of them answer at random (`spam`). *Coverage* is
the share of scores within their 95% interval, of the score that all such judges together answer by;
*slope* that of the scores on those of a plain Bradley-Terry fit of all labels, without privacy;
*ranks* how many ranks are possible for a system; *wrong* how often a board claims a false rank (5%
at most, since ranks hold together); *information* what the information matrix alone covers, of a
fit without clip, ridge or design effect. *tau* is Kendall's, of the released order with that of all
labels without privacy.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
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
from labelguard.mechanisms.geometry import Basis, Shape, choose_basis, compute_spectrum
from labelguard.mechanisms.noise import Noise, ReleasedNoise
from labelguard.mechanisms.statistic import Bounds, Rows
from labelguard.release.head import Head, Window, fit
from labelguard.release.mechanisms import statistic_summary
from labelguard.simulation import tie_probability

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 3.0)
FAMILIES = ("same", "normal", "camps", "heavy", "spam")
SPREAD = 0.8
TIES = 0.4
MANY = 20_000  # judges who are as good as all
MEASURES = ("coverage", "half_width", "error", "slope", "ranks", "wrong", "information", "tau")

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
        axes = choose_basis(compute_spectrum(self.x, counts), shape)
        z = axes.coordinates(self.x)
        bounds = _bounds(z, self.rows, shape.clip_quantile, noise.deviation(z.shape[1]))
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
        weight = statistic.sum_pair_weights(self.rows, bounds, len(z))
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
            **statistic_summary.compute_window_fields(
                self.x, z, self.rows, bounds, used, self._groups()
            ),
        )

    def plain(self) -> Floats:
        """Scores (systems,) in points from all labels, without privacy."""
        weight = np.bincount(self.rows.pair, minlength=len(self.x)).astype(float)
        total = np.bincount(self.rows.pair, self.half, len(self.x)) @ self.x.astype(float)
        return ELO * fit_statistic(self.x, weight, total, 1e-3) * float(np.abs(self.x).max())


def _bounds(z: NDArray[np.float32], rows: Rows, clip_quantile: float, noise: float) -> Bounds:
    """The bounds of a release on sources; those of every release, of a version that has no own."""
    if not hasattr(statistic, "compute_source_bounds"):
        return statistic.compute_bounds(z, rows, clip_quantile)
    return statistic.compute_source_bounds(z, rows, clip_quantile, noise)


def simulated(systems: int, judges: int, family: str, seed: int) -> World:
    """Judges who compare systems, each by a taste of their own; about 40 labels a judge."""
    rng = np.random.default_rng([seed, systems, judges, FAMILIES.index(family)])
    counts = np.maximum(rng.lognormal(np.log(40), 0.8, judges).astype(int), 3)
    one, other = np.triu_indices(systems, 1)
    x = np.zeros((len(one), systems), np.float32)
    x[np.arange(len(one)), one], x[np.arange(len(one)), other] = 1, -1
    unit = np.repeat(np.arange(judges), counts)
    rows = Rows(rng.integers(len(one), size=len(unit)), unit, judges)
    strength, axis = SPREAD * rng.normal(size=systems), rng.normal(size=systems)
    axis *= 1.4 / np.sqrt(np.mean((axis[one] - axis[other]) ** 2))
    every = _opinions(family, strength, axis, judges, rng)
    gap = every[unit, one[rows.pair]] - every[unit, other[rows.pair]]
    tied = rng.random(len(gap)) < tie_probability(gap, TIES)
    first = rng.random(len(gap)) < 1 / (1 + np.exp(-gap))
    # What all judges answer, of a tie one half each.
    every = _opinions(family, strength, axis, MANY, np.random.default_rng(0))
    # Each with one of the opposite taste, so that this sample leans to no side.
    other_taste = np.where(every.any(axis=1, keepdims=True), 2 * strength - every, 0)
    every = np.concatenate([every, other_taste])
    gaps = every[:, one] - every[:, other]
    expected = ((1 - tie_probability(gaps, TIES)) * np.tanh(gaps / 2) / 2).mean(axis=0)
    true = fit_statistic(x, np.ones(len(x)), expected @ x.astype(float), 1e-6)
    names = tuple(f"system {at:02d}" for at in range(systems))
    half = np.where(tied, 0.0, first - 0.5)
    return World(names, x / np.sqrt(2, dtype=np.float32), rows, half, true - true.mean())


def _opinions(
    family: str, strength: Floats, axis: Floats, judges: int, rng: np.random.Generator
) -> Floats:
    """What each judge thinks of each system (judges, systems), in log-odds."""
    shape = (judges, len(strength))
    if family == "camps":
        return strength + rng.choice([-1.0, 1.0], (judges, 1)) * axis
    deviation = {"same": 0.0, "normal": 0.7, "heavy": 0.5, "spam": 0.3}[family]
    taste = deviation * rng.normal(size=shape)
    if family == "heavy":
        taste *= rng.standard_t(2.5, size=(judges, 1))
    at_random = (rng.random((judges, 1)) < 0.15) & (family == "spam")
    return np.where(at_random, 0.0, strength + taste)


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
    plain = world.plain() - world.plain().mean()
    return {
        "coverage": float(np.mean(covered)),
        "first": float(covered[0]),
        "half_width": float(below.mean()),
        "error": float(np.mean((score - true) ** 2)),
        "slope": float(score @ plain / (plain @ plain)),
        "ranks": float(np.mean([one.worst_rank - one.rank + 1 for one in standings])),
        "wrong": float(_wrong(standings, true)),
        "information": _information(world, head, true),
        "tau": float(kendalltau(score, plain).statistic),
    }


def _wrong(standings: list[Standing], true: Floats) -> bool:
    """Whether some true rank is outside of what the board says is possible."""
    rank = 1 + (true[:, None] > true).sum(axis=0)
    return any(not one.rank <= r <= one.worst_rank for one, r in zip(standings, rank, strict=True))


def _information(world: World, head: Head, true: Floats) -> float:
    """Coverage by the inverse information and the noise alone, around the plain fit."""
    assert head.summary and head.summary.source_scores and head.statistic is not None
    z = head.basis.coordinates(world.x)
    bounds = statistic.compute_bounds(z, world.rows, head.shape.clip_quantile)
    weight = statistic.sum_pair_weights(world.rows, bounds, len(z))
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


def _run(task: tuple[int, int, str, float, int]) -> dict[str, float]:
    systems, judges, family, epsilon, seed = task
    world = simulated(systems, judges, family, seed)
    return judged(world, noise_of("ball", epsilon, systems - 1), seed)


def settings(quick: bool, judges: int | None = None) -> Iterator[tuple[int, int, str, float]]:
    """Systems, judges, family, ε; of all sizes, or of so many judges alone."""
    sizes = ((6, 35),) if quick else ((6, 35), (6, 100), (6, 300), (6, 1000), (20, 200))
    for size in sizes:
        if judges in (None, size[1]):
            yield from ((*size, family, epsilon) for epsilon in (3.0, 1.0) for family in FAMILIES)


def _means(pool: ProcessPoolExecutor, setting: tuple[Any, ...], seeds: range) -> list[float]:
    results = list(pool.map(_run, [(*setting, seed) for seed in seeds]))
    means = {name: float(np.mean([one[name] for one in results])) for name in MEASURES}
    means["error"] **= 0.5
    return [round(value, 3) for value in means.values()]


def _compare(
    chosen: list[tuple[int, int, str, float]], repetitions: int, first: int, earlier: Path | None
) -> None:
    """Report these settings, of this version and beside it of an earlier one."""
    paths = {"new": [*sys.path]} | ({"earlier": [str(earlier), *sys.path]} if earlier else {})
    spawned = multiprocessing.get_context("spawn")
    pools = {version: ProcessPoolExecutor(os.cpu_count(), spawned) for version in paths}
    rows: list[list[Any]] = []
    for setting in chosen:
        worlds = max(repetitions // (1 if setting[1] <= 100 else 3), 2)
        seeds = range(first, first + worlds)
        for version, pool in pools.items():
            sys.path[:] = paths[version]  # a process that begins now loads this version
            rows.append([*setting, worlds, version, *_means(pool, setting, seeds)])
            print(rows[-1], flush=True)
    for pool in pools.values():
        pool.shutdown()
    columns = ["systems", "judges", "family", "epsilon", "worlds", "version", *MEASURES]
    report("leaderboard", columns, rows)


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
    parser.add_argument("--repetitions", type=int, default=36)
    parser.add_argument("--first-seed", type=int, default=0, help="other worlds than the usual")
    parser.add_argument("--judges", type=int, help="worlds of so many judges alone")
    parser.add_argument("--earlier", type=Path, help="directory of an earlier version")
    parser.add_argument("--only-data", action="store_true", help="no simulation")
    options = parser.parse_args()
    if not options.only_data:
        chosen = list(settings(options.quick, options.judges))
        repetitions = 4 if options.quick else options.repetitions
        _compare(chosen, repetitions, options.first_seed, options.earlier)
    if options.data:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            rows: list[list[Any]] = []
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
