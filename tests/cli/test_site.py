"""The site of docs/, as far as it can be told without building it: all pages, and their links."""

import re

import labelguard_trainer
import pytest
from support.pages import ROOT, script

import labelguard

hooks = script(ROOT / "docs" / "site" / "hooks.py")


def test_every_page_is_in_the_navigation_once():
    _, _, nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    named = re.findall(r"(?m)^ *- .*: (\S+\.md)$", nav)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    made = {"json.md", "licences.md"}  # by `make docs`, for the site alone
    assert sorted(named) == sorted(pages | made | set(hooks.ROOT_PAGES.values()))


def test_every_public_name_is_in_the_reference():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = set(re.findall(r"(?m)^::: (\S+)$", "".join(page.read_text() for page in pages)))
    for package in (labelguard, labelguard_trainer):
        public = {f"{package.__name__}.{name}" for name in package.__all__ if name[:2] != "__"}
        assert public <= named


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("docs/tutorial.md", "../labelguard/text.py", "source/labelguard/text.py.md"),
        ("docs/tutorial.md", "../labelguard/analysis", "source/labelguard/analysis.md"),
        ("docs/tutorial.md", "../SECURITY.md#containers", "security.md#containers"),
        ("docs/privacy-officer.md", "verify.py", "source/docs/verify.py.md"),
        ("docs/reference/python.md", "../../tests/conftest.py", "../source/tests/conftest.py.md"),
        ("docs/tutorial.md", "figures/year.png", "figures/year.png"),
        ("docs/tutorial.md", "https://labelstud.io", "https://labelstud.io"),
        ("CHANGELOG.md", "docs/format.md#rows", "format.md#rows"),
    ],
)
def test_links_lead_to_where_the_site_has_the_file(page, link, there):
    assert hooks.linked(f"see [it]({link}), and", page) == f"see [it]({there}), and"


def test_the_page_of_a_file_holds_all_of_it():
    path = "tests/cli/test_docs.py"  # it holds fences itself
    text = (ROOT / path).read_text(encoding="utf-8")
    shown = hooks.source(path)
    assert f"\n````python\n{text}\n````\n" in shown and "````" not in text
    assert "\n- [reward.py](analysis/reward.py.md)\n" in hooks.source("labelguard/analysis")
