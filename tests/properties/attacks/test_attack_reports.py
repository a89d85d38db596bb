"""Two reports a week apart: between them one labeler gave one label. What was it?

The attacker has both reports and knows everything else. Their difference must be counts of who was
charged, digests of what was released, and numbers that follow from a noisy sum (which is held fixed
here: that it differs by what it was charged for is no attack), whatever the label says.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import world
from support.preferences import STATISTIC

import labelguard as lg
from labelguard import clock
from labelguard.project import policies
from labelguard.report.page import report
from labelguard.report.render import html, markdown

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
# Its digest is one of the released files, too; releases are public.
ANCHOR = re.compile(r"(labelguard-anchor:1:\d+:)[0-9a-f]{64}")


def given(*labels: int) -> pa.Table:
    """So many labels of one person, beside those of others; all but the last are known."""
    rows = [
        {"labeler_id": who, "prompt": f"question {item}", "label": (item + place) % 2}
        for place, who in enumerate(("one", "two", "three"))
        for item in range(6)
    ]
    rows += [
        {"labeler_id": "victim", "prompt": f"question {item}", "label": label}
        for item, label in enumerate(labels)
    ]
    sides = {"response_a": "yes", "response_b": "no, for a longer reason"}
    return pa.Table.from_pylist([row | sides for row in rows])


def told(directory: Path, label: int, options: dict[str, Any]) -> list[str]:
    """Both reports of a project to which the victim's last label came in between, and the pages."""
    found: list[str] = []
    with clock.simulate_time(MONDAY):
        project = lg.init(directory)
        allow = ["rr:labels=20", "statistic:releases=4"]
        policies.new("both", epsilon=3, delta=1e-5, allow=allow, project=project)
        policies.activate("both", project)
    for week, labels in enumerate(((1, 0, 1), (1, 0, 1, label))):
        with clock.simulate_time(MONDAY + timedelta(weeks=week)):
            lg.privatize(given(*labels), project=project, **options)
        with clock.simulate_time(MONDAY + timedelta(weeks=week, days=1)):
            made = report(project=project)
        found += [json.dumps(asdict(made)), markdown(made)]
    found.append(html(made))
    return [ANCHOR.sub(r"\1", text) for text in found]


@pytest.mark.quick("rr")
@pytest.mark.parametrize(
    "options",
    [{"mechanism": "rr"}, STATISTIC | {"features": "length", "components": 1}],
    ids=["rr", "statistic"],
)
def test_their_difference_does_not_tell_the_label_between_them(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []
    for number, label in enumerate((0, 1)):
        world.fix_randomness(monkeypatch, world.repeatable_bytes())
        world.hold_noisy_sum(monkeypatch)
        reports.append(told(tmp_path / str(number), label, options))
    assert reports[0] == reports[1]
    before, after = (json.loads(reports[0][place]) for place in (0, 2))
    assert before != after  # that there was a label is told, and by how much the budget moved
    assert "victim" not in "".join(reports[0])
