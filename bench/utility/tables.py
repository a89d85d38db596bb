"""Results as tables: aligned for a terminal, Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from utility.gradients import AUP_HINDSIGHT, ELS, ULS, ULS_HINDSIGHT
from utility.mechanisms import CAPPED, COINS, PLANNED, RR, RR_COINS
from utility.results import Mean, Results, Setting, mean

Table = list[list[str]]
"""Rows of cells; the first row names the columns."""


def plain(table: Table) -> str:
    """Columns padded to one width."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )
    return "\n".join(lines)


def markdown(table: Table) -> str:
    """A Markdown table."""
    head, *body = table
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def utility(results: Results, setting: Setting, mechanisms: Sequence[str]) -> Table:
    """A row for each mechanism: held-out accuracy ± standard error / label error, for every ε."""
    epsilons = results.epsilons(setting)
    table = [["", *(f"ε = {epsilon:g}" for epsilon in epsilons)]]
    for mechanism in mechanisms:
        if mechanism in CAPPED or (mechanism in COINS and mechanism != RR_COINS):
            continue
        cells = [_cell(results, setting, mechanism, epsilon) for epsilon in epsilons]
        if any(cells):
            table.append([mechanism, *cells])
        for every, bounded in ((RR, CAPPED), (RR_COINS, COINS)):
            if mechanism == every:
                best = [_best_bound(results, setting, e, every, bounded) for e in epsilons]
                if any(best):
                    table.append([f"{every}, best bound", *best])
    return table


def calibration(results: Results, setting: Setting) -> Table:
    """Calibration error of a planned statistic, before and after its scale, by ε."""
    epsilons = results.epsilons(setting)
    table = [["", *(f"ε = {epsilon:g}" for epsilon in epsilons)]]
    for name, measure in (
        ("as fitted", "calibration_excess_unscaled"),
        ("scaled by c^.75", "calibration_excess_power"),
        ("scaled by c", "calibration_excess"),
        ("c", "scale"),
    ):
        means = [results.mean(setting, PLANNED, epsilon, measure) for epsilon in epsilons]
        if any(means):
            table.append([name, *(_short(mean) if mean else "" for mean in means)])
    return table


def _best_bound(
    results: Results, setting: Setting, epsilon: float, every: str, bounded: Iterable[str]
) -> str:
    """Randomized response under the bound that turned out best: more than anyone can know."""
    found = [
        (mean.value, name)
        for name in dict.fromkeys([every, *bounded])
        if (mean := results.mean(setting, name, epsilon, "accuracy"))
    ]
    if len(found) < 2:
        return ""
    name = max(found)[1]
    bound = name.rpartition("-cap-")[2] if name != every else "none"
    return f"{_cell(results, setting, name, epsilon)} (bound {bound})"


def differences(results: Results, setting: Setting) -> Table:
    """What the accuracy of a run of `uls` is beside others', on the same splits."""
    epsilons = results.epsilons(setting)
    table = [["uls − …, on the same splits", *(f"ε = {epsilon:g}" for epsilon in epsilons)]]
    for name in (PLANNED, "uls-mean", ULS_HINDSIGHT, ELS, AUP_HINDSIGHT):
        cells = []
        for epsilon in epsilons:
            mine = results.values(setting, ULS, epsilon, "accuracy")
            theirs = results.values(setting, name, epsilon, "accuracy")
            gap = mean(mine[seed] - theirs[seed] for seed in mine.keys() & theirs.keys())
            cells.append(f"{gap.value:+.3f} ± {gap.error:.3f}".replace("0.", ".") if gap else "")
        if any(cells):
            table.append([name, *cells])
    return table


def joint_flips(results: Results, setting: Setting) -> Table:
    """What it gains that the labels of a labeler are flipped together, on the same splits."""
    epsilons = results.epsilons(setting)
    table = [["joint flips less coins", *(f"ε = {epsilon:g}" for epsilon in epsilons)]]
    for name, joint, coins in (
        ("all labels", (RR,), (RR_COINS,)),
        ("best bound of each", (RR, *CAPPED), COINS),
    ):
        cells = [_gain(results, setting, epsilon, joint, coins) for epsilon in epsilons]
        if any(cells):
            table.append([name, *cells])
    return table


def _gain(
    results: Results, setting: Setting, epsilon: float, joint: Sequence[str], coins: Sequence[str]
) -> str:
    mine, theirs = (
        max(
            (results.values(setting, name, epsilon, "accuracy") for name in names),
            key=lambda values: float(np.mean(list(values.values()) or [0])),
        )
        for names in (joint, coins)
    )
    gap = mean(mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys()))
    if gap is None:
        return ""
    before, now = (np.mean(list(values.values())) for values in (theirs, mine))
    words = f"{before:.3f} → {now:.3f} ({gap.value:+.3f} ± {gap.error:.3f})"
    return words.replace("0.", ".")


def cost(results: Results, setting: Setting, mechanisms: Sequence[str]) -> Table:
    """A row for each mechanism: mean seconds, and the memory it needed beside the dataset."""
    table = [["", "seconds", "memory (MB)"]]
    epsilon = next(iter(results.epsilons(setting)), None)  # costs hardly depend on it
    for mechanism in mechanisms:
        seconds = results.mean(setting, mechanism, epsilon, "seconds")
        megabytes = results.mean(setting, mechanism, epsilon, "peak_mb")
        if seconds and megabytes:
            table.append([mechanism, f"{seconds.value:.2f}", f"{megabytes.value:.0f}"])
    return table


def _cell(results: Results, setting: Setting, mechanism: str, epsilon: float) -> str:
    accuracy = results.mean(setting, mechanism, epsilon, "accuracy")
    error = results.mean(setting, mechanism, epsilon, "label_error")
    if accuracy is None or error is None:
        return ""
    return f"{_short(accuracy)} / {error.value:.3f}".replace("0.", ".")


def _short(mean: Mean) -> str:
    """.656 ± .003, or of one split .656"""
    text = str(mean) if mean.seeds > 1 else f"{mean.value:.3f}"
    return text.replace("0.", ".")
