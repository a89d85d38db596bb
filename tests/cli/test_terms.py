"""Whoever has read the README understands what a command prints first."""

import re

import pytest
from support.pages import ROOT
from support.terms import README, TERMS, unexplained

GOLDEN = sorted((ROOT / "tests" / "golden").glob("*.txt"))


def test_the_readme_is_read_in_three_minutes():
    assert len(README.split()) <= 700
    assert len(re.findall(r"(?m)^!\[", README)) == 1


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_commands_print_has_no_word_that_nobody_explains(path):
    assert unexplained(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dropped by the cohort", ["cohort"]),
        ("cohort: who is in a step", []),
        ("rows set aside (quarantine)", []),
        ("2 windows, ε0 = 1", ["ε0", "window"]),
        ("policies charged 3 labelers", []),
        ("a windowsill", []),
    ],
)
def test_a_word_is_found_unless_it_is_explained(text, found):
    assert unexplained(text) == found


def test_the_list_is_in_order_and_has_each_word_once():
    assert len(set(TERMS)) == len(TERMS) > 50
