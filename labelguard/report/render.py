"""A report, and the three forms that it has: a page, Markdown and JSON.

The words of its sections are in words.j2, plain text in which a name is only a name. Each form
escapes all of it: the page, which has no scripts, loads nothing and may load nothing, as HTML; in
Markdown nothing that a name says is a mark, a link or HTML; JSON is in ASCII.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from labelguard.budget import events
from labelguard.release.sections import Chart, Section, Table, fill_section
from labelguard.report.charts import NARROW, WIDE, draw_svg, recolor_dark
from labelguard.text import escape_controls, format_budget, pluralize, read_template

if TYPE_CHECKING:
    import jinja2

    from labelguard.release.sections import Cell

# Letters beyond which a cell is words that may wrap; shorter ones stay in one line.
_PROSE = 32
_BUDGET = re.compile("([εδ]) = ")
_NUMBER = re.compile(r"[−-]?[\d.,]+(e-?\d+)?( ?%)?|–|")
_MARKS = re.compile(
    r"([\\`*_\[\]<>|~#&$!])|(?<!\w)@|@(?!\w)|(:)(?=//)|(?<=www)(\.)", re.IGNORECASE
)  # of @ those outside an address
_LIST = re.compile(r"^(?:(?=[-+=])|(\d+)(?=[.)]\s))")


@dataclass(frozen=True)
class Report:
    """A document on a project, made `at` some time (UTC) by a version of `labelguard`.

    `ok` says whether everything that was verified holds; `summary` are the few facts that come
    first.
    """

    title: str
    at: str
    labelguard: str
    ok: bool
    summary: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


def fill_words(
    block: str,
    name: str | None = None,
    *,
    rows: Iterable[Sequence[Cell]] = (),
    newest_first: bool = False,
    chart: Chart | None = None,
    **facts: Any,
) -> Section:
    """Return a section in the words of a block of words.j2, which are filled with `facts`.

    The words say the caption and the columns of its table, which it has if there are `rows`.
    """
    template = _load_template("words.j2", escape_controls, autoescape=False)
    shape: Any = {"table": rows, "newest_first": newest_first, "chart": chart}
    return fill_section(template, block, name, **shape, **facts)


def render_html(report: Report) -> str:
    """Return the page; what the browser may load are pictures in it, and exactly its own style."""
    style = (files(__package__) / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'"
    template = _load_template("report.html.j2", _keep_budgets_together, autoescape=True)
    return template.render(report=report, style=style, policy=policy) + "\n"


def render_markdown(report: Report) -> str:
    """Return headings, paragraphs and tables; a chart is its message and its numbers."""
    return _load_template("report.md.j2", _escape_markdown, autoescape=True).render(report=report)


def render_json(report: Report) -> str:
    """Return its fields; control characters and signs that turn text are escaped."""
    return json.dumps(asdict(report), indent=2, allow_nan=False) + "\n"


# The forms of a report, by the ending of a file's name.
FORMS: Mapping[str, Callable[[Report], str]] = {
    "html": render_html,
    "md": render_markdown,
    "json": render_json,
}


@cache
def _load_template(
    name: str, finalize: Callable[[str], str], *, autoescape: bool
) -> jinja2.Template:
    """Return a template whose texts, as they are filled in, are first `finalize`d."""
    filters = {
        "budget": format_budget,
        "cell": format_cell,
        "pluralize": pluralize,
        "day": format_time,
        "kinds": _column_kinds,
        "noun": lambda event: events.find_event_kind(event).noun,
        "paragraph": _escape_paragraph,
        "pictures": _draw_picture_urls,
        "small": format_small_number,
        "verbatim": lambda line: Markup(escape_controls(line)),
        "format_as": format,
    }
    return read_template(
        files(__package__) / name,
        filters,
        autoescape=autoescape,
        finalize=lambda value: finalize(value) if type(value) is str else value,
    )


def _keep_budgets_together(text: str) -> str:
    """Text that cannot turn itself, whose budgets stay in one line."""
    return _BUDGET.sub("\\1\u00a0=\u00a0", escape_controls(text))


def _escape_markdown(text: str) -> Markup:
    """Text in which no letter is a mark of Markdown."""
    return Markup(_MARKS.sub(lambda mark: f"\\{mark[0]}", escape_controls(text)))


def _escape_paragraph(text: str) -> Markup:
    """Return a paragraph of Markdown, which is no list even if it begins with a number."""
    return Markup(_LIST.sub(r"\1\\", _escape_markdown(text)))


def format_cell(cell: Cell) -> str:
    """Return a cell as text: thousands apart, four digits of a fraction, – for nothing."""
    if cell is None:
        return "–"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if cell == int(cell) else f"{cell:,.4g}"
    return cell


def format_time(at: str) -> str:
    """Return a time as the ledger tells it for people: 2026-01-05 14:30."""
    return at[:16].replace("T", " ")


def format_small_number(value: float) -> str:
    """Return a small number as people write it: 1e-5."""
    return f"{value:g}".replace("e-0", "e-")


def _column_kinds(table: Table) -> list[str]:
    """Return what its columns hold: numbers, prose, or else names in one line."""
    if not table.rows:
        return [""] * len(table.columns)
    columns = (list(map(format_cell, column)) for column in zip(*table.rows, strict=True))
    return [
        "number"
        if all(map(_NUMBER.fullmatch, column))
        else "prose" * (max(map(len, column)) > _PROSE)
        for column in columns
    ]


def _draw_picture_urls(chart: Chart) -> dict[str, str]:
    """Return the chart for light and dark pages, wide and narrow ones."""
    wide, narrow = draw_svg(chart, WIDE), draw_svg(chart, NARROW)
    pictures = {"light": wide, "light_narrow": narrow}
    pictures |= {"dark": recolor_dark(wide), "dark_narrow": recolor_dark(narrow)}
    return {
        name: f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"
        for name, picture in pictures.items()
    }
