"""Two reports a week apart: between them one labeler gave one label. What was it?

The attacker has both reports and knows everything else. Their difference must be counts of who was
charged, digests of what was released, and numbers that follow from a noisy sum (which is held fixed
here: that it differs by what it was charged for is no attack), whatever the label says.
"""

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support import world
from support.copies import copy_project
from support.preferences import STATISTIC
from support.releases import make_release
from support.times import simulate_time

import labelguard as lg
from labelguard.mechanisms import statistic
from labelguard.project import policies
from labelguard.release import head
from labelguard.report.page import report
from labelguard.report.render import render_html, render_markdown

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
# Its digest is one of the released files, too; releases are public.
ANCHOR = re.compile(r"(labelguard-anchor:1:\d+:)[0-9a-f]{64}")


def labels_table(*labels):
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


def write_reports(directory, label, options):
    """Both reports of a project to which the victim's last label came in between, and the pages."""
    found: list[str] = []
    with simulate_time(MONDAY):
        project = lg.init(directory)
        allow = ["rr:uses=2", "statistic:releases=4"]
        policies.new("both", epsilon=3, delta=1e-5, allow=allow, project=project)
        policies.activate("both", project)
    for week, labels in enumerate(((1, 0, 1), (1, 0, 1, label))):
        with simulate_time(MONDAY + timedelta(weeks=week)):
            make_release(labels_table(*labels), project=project, **options)
        with simulate_time(MONDAY + timedelta(weeks=week, days=1)):
            made = report(project=project)
        found += [json.dumps(asdict(made)), render_markdown(made)]
    found.append(render_html(made))
    return [ANCHOR.sub(r"\1", text) for text in found]


@pytest.mark.quick("rr")
@pytest.mark.parametrize(
    "options",
    [{"mechanism": "rr"}, STATISTIC | {"features": "length", "components": 1}],
    ids=["rr", "statistic"],
)
def test_their_difference_does_not_tell_the_label_between_them(options, tmp_path, monkeypatch):
    reports = []
    for number, label in enumerate((0, 1)):
        world.fix_randomness(monkeypatch, world.repeatable_bytes())
        world.hold_noisy_sum(monkeypatch)
        reports.append(write_reports(tmp_path / str(number), label, options))
    assert reports[0] == reports[1]
    before, after = (json.loads(reports[0][place]) for place in (0, 2))
    assert before != after  # that there was a label is told, and by how much the budget moved
    assert "victim" not in "".join(reports[0])


# An attack on what follows from a noisy statistic: does any of it look at labels once more?
#
# Coefficients, weights, the scale of probabilities and every label of the teacher are functions of
# the noisy sum and of public columns. With the sum held fixed, all that leaves the project is the
# same, whatever the labels are and however the file is sorted.


OPTIONS: dict[str, Any] = {
    "mechanism": "statistic",
    "features": "length+source:model,by=language",
    "public_columns": ["language", "model"],
}


SYSTEMS = ("alpha", "beta", "gamma", "delta", "epsilon")


def compare_systems():
    """24 judges compare pairs of five systems on some of 40 questions in two languages."""
    rng = np.random.default_rng(0)
    first = rng.integers(5, size=288)
    second = (first + rng.integers(1, 5, size=288)) % 5
    question = rng.integers(40, size=288)
    sides = {
        f"{what}_{side}": [words.format(SYSTEMS[s], q) for s, q in zip(by, question, strict=True)]
        for side, by in (("a", first), ("b", second))
        for what, words in (("response", "{} on {}"), ("model", "{}"))
    }
    return pl.DataFrame(
        {
            "labeler_id": [f"judge-{row // 12}" for row in range(288)],
            "prompt": [f"question {q}" for q in question.tolist()],
            "language": ["de" if q % 2 else "en" for q in question.tolist()],
            "label": (rng.random(288) < 1 / (1 + np.exp(first - second))).astype(float),
            **sides,
        }
    )


FIRST = compare_systems()


def labels(name):
    """The same comparisons with other labels, or in another order."""
    label = pl.col("label")
    return {
        "as they are": FIRST,
        "the other way": FIRST.with_columns(label=1 - label),
        "ties": FIRST.with_columns(label=pl.lit(0.5)),
        "sorted": FIRST.with_columns(label=1 - label).sort("label", "model_a"),
    }[name]


def published_by(name, empty, here):
    """Everything about the head that leaves a copy of one project, and the labels it gave."""
    copy_project(empty, here)
    made = make_release(labels(name), project=here, epsilon=1, delta=1e-5, **OPTIONS)
    rows = lg.load(made, "polars").sort("prompt", "chosen", "rejected", "item_id").write_ndjson()
    card = made.card["statistic"], made.card["head"]
    return (made.path / head.FILE).read_bytes(), rows, str(card)


def publish_copies(tmp_path, *names):
    """What leaves copies of a project, each with other labels."""
    empty = tmp_path / "empty"
    lg.init(empty)
    return [published_by(name, empty, tmp_path / name) for name in ("as they are", *names)]


def test_with_the_noisy_sum_held_fixed_labels_change_nothing(tmp_path, monkeypatch):
    world.hold_noisy_sum(monkeypatch)
    first, *others = publish_copies(tmp_path, "ties", "sorted")
    for other in others:
        for one, same in zip(first, other, strict=True):
            assert one == same


@pytest.mark.slow
def test_the_test_sees_a_sum_that_follows_labels(tmp_path, monkeypatch):
    """The control: without noise the same files differ; sorting alone still changes nothing."""
    monkeypatch.setattr(statistic, "add_noise", lambda total, grid, nonce: total)
    as_they_are, other, ties, resorted = publish_copies(tmp_path, "the other way", "ties", "sorted")
    assert len({one[0] for one in (as_they_are, other, ties)}) == 3
    assert as_they_are[1] != other[1]
    assert other == resorted
