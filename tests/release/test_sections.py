"""What mechanisms say of themselves: cards and reports know none of them by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.doors import install
from support.preferences import TABLE

import labelguard as lg
from labelguard.release import card, sections
from labelguard.report.page import report, write
from labelguard.report.render import html, markdown

BUDGET: dict[str, Any] = {"epsilon": 3, "delta": 1e-5}

MECHANISM = """
from dataclasses import dataclass, replace
from typing import ClassVar


@dataclass(frozen=True)
class door:
    mechanism: ClassVar[str] = "sealed_part:opened"
    report: ClassVar[str] = "sealed_part:told"


def opened(options):
    from labelguard.release.mechanisms.rr import RandomizedResponse

    class Sealed(RandomizedResponse):
        name, version = "sealed", 1

        def finish(self, job, prepared, grant):
            made = super().finish(job, prepared, grant)
            return replace(made, card={**made.card, "seal": {"wax": "red <b>"}})

    return Sealed()


def told(card):
    from labelguard.release.sections import Chart, Section, Series, Table

    yield Section(
        "seal",
        "The seal of this release",
        ("It is sealed with wax.",),
        Table("Seals", ("seal", "wax"), ((1, card["seal"]["wax"]),)),
        Chart("Wax", "One seal.", "bars", ("red",), "wax", "seals", (Series("seals", (1,)),)),
        facts=(("wax", card["seal"]["wax"]), ("  duplicates", "none to speak of")),
    )
"""


@pytest.fixture
def sealed(tmp_path, monkeypatch):
    """A release by a mechanism of another package."""
    install(tmp_path / "site", "labelguard.mechanisms", "sealed", MECHANISM, monkeypatch)
    return lg.privatize(TABLE, project=lg.init(tmp_path), mechanism="sealed", **BUDGET)


def test_a_mechanism_of_another_package_speaks_in_card_and_report(sealed, tmp_path):
    assert sealed.card["seal"] == {"wax": "red <b>"}
    text = (sealed.path / "CARD.md").read_text()
    assert r"| wax | red \<b\> |" in text and "| duplicates | none to speak of |" in text
    told = report(project=tmp_path)
    [own] = [section for section in told.sections if section.id == "seal"]
    assert own.title == f"The seal of this release ({sealed.id})" and own.chart
    page = html(told)
    assert "It is sealed with wax." in page and "red &lt;b&gt;" in page and "red <b>" not in page
    assert "It is sealed with wax." in markdown(told)


@pytest.mark.slow
def test_a_card_outlives_its_mechanism(sealed, tmp_path, monkeypatch):
    monkeypatch.undo()  # the package is gone
    [gone] = sections.sections_of_card(sealed.card)
    assert "sealed cannot be shown: it is not installed" in gone.text[0]
    assert ("  duplicates", "0") in list(card.facts(sealed.card))
    found = write(tmp_path / "report.html", sealed.id, tmp_path)
    assert found.ok and "cannot be shown" in (tmp_path / "report.html").read_text()


def test_a_mechanism_that_cannot_read_its_card_spoils_no_report(sealed, tmp_path):
    older = {name: value for name, value in sealed.card.items() if name != "seal"}
    [section] = sections.sections_of_card(older)
    assert "cannot be shown: KeyError" in section.text[0]


def test_every_mechanism_of_ours_says_what_its_card_holds(tmp_path):
    options = {"mechanism": "props", "features": "length"}
    release = lg.privatize(TABLE, project=lg.init(tmp_path), **BUDGET | options)
    stored = json.loads((release.path / "card.json").read_text())
    names = {name for section in sections.sections_of_card(stored) for name, _ in section.facts}
    assert "flip probability" in names and "model's error, stage 2" in names
    assert [section.id for section in sections.sections_of_card(stored)] == ["flips", "stages"]
