"""Results as tables: aligned for a terminal, Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from utility.results import Mean, Results, Setting

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
        cells = [_cell(results, setting, mechanism, epsilon) for epsilon in epsilons]
        if any(cells):
            table.append([mechanism, *cells])
    return table


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
    return "" if accuracy is None or error is None else f"{_short(accuracy)} / {error.value:.3f}"


def _short(mean: Mean) -> str:
    """.656 ± .003"""
    return str(mean).replace("0.", ".")
