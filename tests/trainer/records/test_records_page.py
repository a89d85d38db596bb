"""The section of docs/alignment.md on whole records, done."""

import re
import shlex
from pathlib import Path

import pytest
from support.commands import run
from support.pages import DOCS
from support.whole_records import write_all

SECTION = (DOCS / "alignment.md").read_text(encoding="utf-8").partition("\n## Whole records")[2]


@pytest.mark.docs
def test_the_recipe_of_the_page_is_followed_as_it_stands(base):
    Path("base").symlink_to(base)
    write_all(people=30)
    [recipe] = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    Path("recipe.yaml").write_text(recipe)
    printed = ""
    for line in re.findall(r"(?m)^\$ labelguard (.*)$", SECTION):
        printed += run(*shlex.split(line)).stdout
    shown = re.findall(r"```text\n(.*?)```", SECTION, re.DOTALL)[0]
    for line in shown.splitlines():
        if not line.startswith("release"):
            assert line in printed
    assert "exhausted 90" in printed
