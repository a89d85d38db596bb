"""How cells of tables are written."""

from __future__ import annotations

import re

from labelguard.release.sections import Cell

PROSE = 32
"""Letters beyond which a cell is words that may wrap; shorter ones stay in one line."""
_NUMBER = re.compile(r"[−-]?[\d.,]+(e-?\d+)?( ?%)?|–|")


def written(cell: Cell) -> str:
    """A cell as text: thousands apart, four digits of a fraction, – for nothing."""
    if cell is None:
        return "–"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if cell == int(cell) else f"{cell:,.4g}"
    return cell


def numeric(cells: tuple[Cell, ...]) -> bool:
    """Whether a column holds numbers, which stand below one another."""
    return all(_NUMBER.fullmatch(written(cell)) for cell in cells)


def day(at: str) -> str:
    """A time as the ledger tells it, for people: 2026-01-05 14:30."""
    return at[:16].replace("T", " ")


def small(value: float) -> str:
    """A small number as people write it: 1e-5."""
    return f"{value:g}".replace("e-0", "e-")
