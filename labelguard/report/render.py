"""A report, its charts, and the three forms that it has: a page, Markdown and JSON.

The words of its sections are in words.j2, plain text in which a name is only a name. Each form
escapes all of it: the page, which has no scripts, loads nothing and may load nothing, as HTML; in
Markdown nothing that a name says is a mark, a link or HTML; JSON is in ASCII.
Charts are SVG, for light and dark pages, wide and narrow ones; the same chart, the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from labelguard.budget import events
from labelguard.release.sections import Chart, Mark, Section, Series, Table, fill_section
from labelguard.text import escape_controls, format_budget, pluralize, read_template

if TYPE_CHECKING:
    import jinja2
    from matplotlib.axes import Axes

    from labelguard.release.sections import Cell


# More points than that are drawn as a line alone.
_POINTS = 12


@dataclass(frozen=True)
class Theme:
    """Colors of a page; `series` differ for color-blind people too, and in lightness."""

    background: str
    text: str
    grid: str
    series: tuple[str, str, str, str]


LIGHT = Theme("#ffffff", "#1b1f24", "#d5dae0", ("#00508c", "#c2410c", "#2299cc", "#332222"))
DARK = Theme("#14181d", "#e8eaed", "#3a424c", ("#7cc0ff", "#ff9c5b", "#f5f5f5", "#4477bb"))

# Sizes in inches, drawn at 96 pixels each: for pages, and for screens of telephones.
WIDE, NARROW = (7.6, 3.2), (3.9, 3.3)

# Letters that names of bars may have in an inch, the space between them included.
_LETTERS = 8
# Letters of a line that no name is broken below.
_SHORT = 14
_HATCHES = ("", "///", "...", "xxx")
_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D")


def draw_svg(chart: Chart, size: tuple[float, float] = WIDE) -> str:
    """Return a chart as SVG for light pages, whose text is text; it holds no date."""
    return draw_svg_or_png(chart, "svg", size).decode()


def draw_svg_or_png(chart: Chart, kind: str, size: tuple[float, float] = WIDE) -> bytes:
    """Return a chart as `svg` or `png` for light pages; the same chart, the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    settings: dict[Any, Any] = {
        "svg.hashsalt": "labelguard",
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 10,
        **dict.fromkeys(inks, LIGHT.text),
        "axes.edgecolor": LIGHT.grid,
        "hatch.color": LIGHT.background,
        "hatch.linewidth": 1.5,
    }
    with rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the measuring font lacks
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        figure.patch.set_facecolor(LIGHT.background)
        axes = figure.subplots()
        axes.set_facecolor(LIGHT.background)
        {"bars": _draw_bars, "lines": _draw_lines}[chart.kind](axes, chart)
        _label_axes_and_legend(axes, chart, size)
        buffer = io.BytesIO()
        unsaid = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, metadata=unsaid, dpi=150 if kind == "png" else "figure")
    return buffer.getvalue()


def recolor_dark(picture: str) -> str:
    """Return the same picture for dark pages: each color of one theme becomes that of the other."""
    colors = dict(zip(_list_theme_colors(LIGHT), _list_theme_colors(DARK), strict=True))
    return re.sub("|".join(colors), lambda color: colors[color[0]], picture)


def _list_theme_colors(theme: Theme) -> tuple[str, ...]:
    return (theme.background, theme.text, theme.grid, *theme.series)


def _draw_bars(axes: Axes, chart: Chart) -> None:
    """Bars at one place stand beside one another; one that is there alone takes all of it."""
    at_place = [sum(one.values[p] is not None for one in chart.series) for p in range(len(chart.x))]
    before = [0] * len(chart.x)
    for number, one in enumerate(chart.series):
        places = [p for p, value in enumerate(one.values) if value is not None]
        widths = [0.8 / at_place[p] for p in places]
        axes.bar(
            [p - 0.4 + w * (before[p] + 0.5) for p, w in zip(places, widths, strict=True)],
            [one.values[p] or 0.0 for p in places],
            [0.95 * width for width in widths],
            color=LIGHT.series[number],
            hatch=_HATCHES[number],
            label=escape_controls(one.name) if any(one.values) else None,
            yerr=_measure_error_bars(one),
            ecolor=LIGHT.text,
            capsize=4 if one.low else 0,
        )
        for p in places:
            before[p] += 1
    room = _LETTERS * axes.figure.get_size_inches()[0]  # type: ignore[union-attr]
    width = max(int(room / len(chart.x)), _SHORT)
    names = [textwrap.fill(escape_controls(str(name)), width) for name in chart.x]
    slanted = sum(max(map(len, name.split("\n"))) for name in names) > room
    axes.set_xticks(
        range(len(names)),
        names,
        rotation=40 if slanted else 0,
        ha="right" if slanted else "center",
        rotation_mode="anchor" if slanted else "default",
    )
    axes.tick_params(axis="x", length=0)


def _measure_error_bars(one: Series) -> Any:
    if not one.low:
        return None
    values = [value or 0.0 for value in one.values]
    below = [max(value - low, 0.0) for value, low in zip(values, one.low, strict=True)]
    above = [max(high - value, 0.0) for value, high in zip(values, one.high, strict=True)]
    return [below, above]


def _draw_lines(axes: Axes, chart: Chart) -> None:
    for number, one in enumerate(chart.series):
        color = LIGHT.series[number]
        values = np.array(one.values, np.float64)
        if one.low:
            axes.fill_between(list(chart.x), one.low, one.high, color=color, alpha=0.2, lw=0)  # type: ignore[arg-type]
        axes.plot(
            list(chart.x),  # type: ignore[arg-type]
            values,
            _DASHES[number],
            color=color,
            marker=_MARKERS[number] if len(values) <= _POINTS else "",
            markersize=5,
            linewidth=2,
            label=escape_controls(one.name),
            clip_on=False,  # a line along an edge is as thick as elsewhere
            zorder=3,
        )


def _label_axes_and_legend(axes: Axes, chart: Chart, size: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    axes.set_xlabel(escape_controls(chart.x_label))
    axes.set_ylabel(escape_controls(chart.y_label))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for mark in chart.marks:
        _draw_mark_line(axes, mark)
    if chart.kind == "bars" or chart.percent:
        axes.set_ylim(bottom=0)
    whole = all(float(v).is_integer() for one in chart.series for v in one.values if v is not None)
    if chart.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    elif whole:
        axes.yaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if chart.kind == "lines":
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.margins(y=0.12)
    named = len(axes.get_legend_handles_labels()[1])
    if named > 1:
        columns = named if size == WIDE else 1
        axes.figure.legend(frameon=False, loc="outside upper left", ncols=columns)


def _draw_mark_line(axes: Axes, mark: Mark) -> None:
    """A line across the chart with its word at the end of it, clear of what is drawn."""
    style: dict[str, Any] = {"color": LIGHT.text, "linewidth": 1.2, "linestyle": (0, (4, 3))}
    if mark.axis == "x":
        axes.axvline(mark.at, **style)
        at, edge, apart, along = (mark.at, 1.0), axes.get_xaxis_transform(), (4, -2), {"va": "top"}
    else:
        axes.axhline(mark.at, **style)
        at, edge, apart, along = (1.0, mark.at), axes.get_yaxis_transform(), (0, 3), {"ha": "right"}
    word: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, **along}
    axes.annotate(escape_controls(mark.text), at, apart, xycoords=edge, **word)


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
