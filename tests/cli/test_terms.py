"""Whoever has read the README understands what a command prints first."""

import re

import pytest
from support.pages import ROOT
from support.terms import README, unexplained

GOLDEN = sorted((ROOT / "tests" / "golden").glob("*.txt"))


def test_the_readme_is_read_in_three_minutes():
    assert len(README.split()) <= 700
    assert len(re.findall(r"(?m)^!\[", README)) == 1


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_commands_print_has_no_word_that_nobody_explains(path):
    assert unexplained(path.read_text(encoding="utf-8")) == []
