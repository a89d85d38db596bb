"""Charts as SVG, for light and dark pages, wide and narrow ones; the same chart, the same bytes."""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labelguard.release.sections import Chart, Mark, Series
from labelguard.text import escape_controls

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
