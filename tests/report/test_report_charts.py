"""Charts: the same bytes, readable text, and colors that color-blind people tell apart."""

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest
from colorspacious import cspace_convert, deltaE

from labelguard.release.sections import Chart, Mark, Series
from labelguard.report.render import DARK, LIGHT, NARROW, draw_svg

# ΔE (CAM02-UCS) between any two colors of a chart; 1 is about what can be seen.
APART = 20.0

BARS = Chart(
    "Uses",
    "Most are at the left.",
    "bars",
    ("a", "b", "c"),
    "share",
    "labelers",
    (Series("below", (3, 2, None)), Series("above", (None, None, 1))),
    (Mark("x", 1.5, "80%"),),
)
LINES = Chart(
    "Budget",
    "It rises.",
    "lines",
    (0.0, 1.0, 2.0),
    "weeks",
    "used",
    (Series("used", (0.1, 0.2, 0.3), (0.0, 0.1, 0.2), (0.2, 0.3, 0.4)), Series("all", (1, 1, 1))),
    (Mark("y", 1.0, "all"),),
    percent=True,
)


def rgb(color):
    return np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255


def seen(color, blindness):
    """A color as people with a color blindness of full severity see it."""
    if blindness is None:
        return rgb(color)
    space = {"name": "sRGB1+CVD", "cvd_type": blindness, "severity": 100}
    return np.clip(cspace_convert(rgb(color), space, "sRGB1"), 0, 1)


def contrast(one, other):
    """The contrast of two colors as WCAG 2 defines it."""

    def luminance(color):
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(color)]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("blindness", [None, "deuteranomaly", "protanomaly", "tritanomaly"])
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_everybody_tells_the_series_apart(theme, blindness):
    for one, other in itertools.combinations(theme.series, 2):
        difference = deltaE(seen(one, blindness), seen(other, blindness), input_space="sRGB1")
        assert difference > APART, (one, other)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_what_is_drawn_stands_out_from_its_page(theme):
    assert all(contrast(color, theme.background) >= 3 for color in theme.series)
    assert contrast(theme.text, theme.background) >= 4.5


@pytest.mark.parametrize("chart", [BARS, LINES], ids=["bars", "lines"])
def test_the_same_chart_gives_the_same_bytes_and_whole_text(chart):
    picture = draw_svg(chart, NARROW)
    assert picture == draw_svg(chart, NARROW)
    words = [
        node.text for node in ElementTree.fromstring(picture).iter() if node.tag.endswith("text")
    ]
    assert {chart.x_label, chart.y_label, chart.marks[0].text} <= set(words)
    assert "<dc:date>" not in picture


def test_names_cannot_command_a_picture():
    name = "<script>alert(1)</script> $\\frac{ \x1b[31m \u202e ]]>"
    chart = Chart(name, name, "bars", (name, "b"), name, name, (Series(name, (1, 2)),))
    picture = draw_svg(chart)
    ElementTree.fromstring(picture)
    assert "<script" not in picture and "\x1b" not in picture and "\u202e" not in picture
