"""A report as one HTML page without scripts, which loads nothing and may load nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from labelguard.report.page.charts import NARROW, WIDE, darkened, svg
from labelguard.report.page.numbers import PROSE, day, numeric, written
from labelguard.terms import shown

if TYPE_CHECKING:
    import jinja2

    from labelguard.release.sections import Cell, Chart, Table
    from labelguard.report.page.document import Report


_BUDGET = re.compile("([εδ]) = ")


def rendered(report: Report) -> str:
    """The page; whatever is told in it is escaped."""
    style = _read("report.css")
    return _template().render(report=report, style=style, policy=_policy(style)) + "\n"


def _policy(style: str) -> str:
    """What the browser may load: pictures in the page, and exactly this style sheet."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'"


def _read(name: str) -> str:
    return files("labelguard.report.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"cell": written, "day": day, "pictures": _pictures, "kinds": _kinds}
    return environment.from_string(_read("report.html"))


def _finalized(value: Any) -> Any:
    """Text that cannot turn itself, whose budgets stay in one line; the style sheet is ours."""
    return _BUDGET.sub("\\1\u00a0=\u00a0", shown(value)) if type(value) is str else value


def _pictures(chart: Chart) -> dict[str, str]:
    """The chart for light and dark pages, wide and narrow ones."""
    wide, narrow = svg(chart, WIDE), svg(chart, NARROW)
    return {
        "light": _data(wide),
        "dark": _data(darkened(wide)),
        "light_narrow": _data(narrow),
        "dark_narrow": _data(darkened(narrow)),
    }


def _data(picture: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"


def _kinds(table: Table) -> list[str]:
    """What its columns hold: numbers, prose, or else names in one line."""
    if not table.rows:
        return [""] * len(table.columns)
    return [_kind(column) for column in zip(*table.rows, strict=True)]


def _kind(column: tuple[Cell, ...]) -> str:
    if numeric(column):
        return "number"
    return "prose" if max(len(written(cell)) for cell in column) > PROSE else ""
