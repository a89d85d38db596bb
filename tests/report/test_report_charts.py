"""Charts: the same bytes, readable text, and colors that color-blind people tell apart."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from colorspacious import cspace_convert, deltaE

from labelguard.release.sections import Chart, Mark, Series
from labelguard.report.charts import DARK, LIGHT, NARROW, draw_svg, recolor_dark

APART = 20.0
"""ΔE (CAM02-UCS) between any two colors of a chart; 1 is about what can be seen."""
STYLE = Path(__file__).parents[2] / "labelguard/report/report.css"

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


def test_words_of_the_page_stand_out_in_both_modes():
    text = STYLE.read_text()
    modes = [
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in text.split("@media")
    ]
    light, dark = modes[0], modes[1]
    assert light["background"] == LIGHT.background and dark["background"] == DARK.background
    for mode in (light, dark):
        for words in ("text", "quiet", "link"):
            assert contrast(mode[words], mode["background"]) >= 4.5
            assert contrast(mode[words], mode["panel"]) >= 4.5
        assert contrast(mode["alert"], mode["alert-panel"]) >= 4.5


@pytest.mark.parametrize("chart", [BARS, LINES], ids=["bars", "lines"])
def test_the_same_chart_gives_the_same_bytes_and_whole_text(chart):
    picture = draw_svg(chart, NARROW)
    assert picture == draw_svg(chart, NARROW)
    words = [
        node.text for node in ElementTree.fromstring(picture).iter() if node.tag.endswith("text")
    ]
    assert {chart.x_label, chart.y_label, chart.marks[0].text} <= set(words)
    assert "<dc:date>" not in picture


def test_a_dark_picture_is_the_light_one_in_other_colors():
    light, dark = draw_svg(BARS), recolor_dark(draw_svg(BARS))
    assert DARK.background in dark and DARK.series[0] in dark
    assert LIGHT.background not in dark and LIGHT.series[0] not in dark
    color = re.compile("#[0-9a-f]{6}")
    assert color.sub("", light) == color.sub("", dark)


def test_names_cannot_command_a_picture():
    name = "<script>alert(1)</script> $\\frac{ \x1b[31m \u202e ]]>"
    chart = Chart(name, name, "bars", (name, "b"), name, name, (Series(name, (1, 2)),))
    picture = draw_svg(chart)
    ElementTree.fromstring(picture)
    assert "<script" not in picture and "\x1b" not in picture and "\u202e" not in picture


def texts(chart):
    return {
        node.text
        for node in ElementTree.fromstring(draw_svg(chart, NARROW)).iter()
        if node.tag[-4:] == "text"
    }


def test_no_word_stands_for_what_is_not_drawn():
    nobody = replace(BARS, series=(BARS.series[0], Series("above", (None, None, 0))))
    assert {"below", "above"} <= texts(BARS) and not {"below", "above"} & texts(nobody)


def test_the_numbers_of_a_chart_are_a_table():
    assert BARS.table().columns == ("share", "below", "above")
    assert BARS.table().rows == (("a", 3, None), ("b", 2, None), ("c", None, 1))
    assert LINES.table().rows[1] == (1.0, "20.0%", "10.0% to 30.0%", "100.0%")
