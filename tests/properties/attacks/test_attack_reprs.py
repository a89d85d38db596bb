"""What a release holds in memory shows nobody when it is printed, as in a log of a traceback."""

import re
from typing import Any

import pytest
from support.preferences import STATISTIC, TABLE
from support.releases import make_release

import labelguard as lg
from labelguard.ledger.ledger import Ledger
from labelguard.project.opening import OpenProject
from labelguard.release import selection
from labelguard.release.mechanisms.rr import RandomizedResponse
from labelguard.release.mechanisms.statistic import Teacher

BUDGET: dict[str, Any] = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}


@pytest.mark.parametrize(
    ("mechanism", "options"), [(RandomizedResponse, {}), (Teacher, STATISTIC)], ids=["rr", "sum"]
)
def test_no_repr_shows_a_key_of_a_labeler_or_of_a_label(mechanism, options, tmp_path, monkeypatch):
    shown: list[str] = []
    keys: set[int] = set()
    draw, charge, of = mechanism.draw, Ledger.charge, selection._Labels.from_table

    def drawing(self, context, prepared, grant, drawn):
        shown.extend(map(repr, (context, prepared.plan, grant, drawn, self)))
        draw(self, context, prepared, grant, drawn)

    def charging(self, asked, *arguments, **named):
        shown.append(repr(asked))
        keys.update(asked.labelers.ravel().tolist())
        return charge(self, asked, *arguments, **named)

    def reading(task, *arguments):
        found = of(task, *arguments)
        shown.extend(map(repr, (task, found, found.released)))
        keys.update(found.key.ravel().tolist())
        return found

    monkeypatch.setattr(mechanism, "draw", drawing)
    monkeypatch.setattr(Ledger, "charge", charging)
    monkeypatch.setattr(selection._Labels, "from_table", reading)
    project = lg.init(tmp_path)
    make_release(TABLE.slice(0, 50), project=project, **BUDGET | options)
    shown.append(repr(OpenProject.open(project).ledger.releases.labelers("rr")))
    numbers = {int(digits) for text in shown for digits in re.findall(r"\d+", text)}
    assert len(keys) > 50 and not {key for key in keys if key > 2**32} & numbers
