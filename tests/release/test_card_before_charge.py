"""A card that cannot be written stops a release before it is charged, not after."""

import jinja2
import pytest
from support.releases import make_release
from support.surveys import survey

from labelguard.project import policies
from labelguard.release import card
from labelguard.report import overview


@pytest.fixture
def table():
    """Pairs with the verdict of a public judge."""
    rows = survey(labelers=24)
    return rows.with_columns(judge=rows["prompt"].hash(1) % 7 - 3.0)


def test_a_card_names_public_judges_where_nothing_was_forecast(table, project):
    """Under a policy that was made before, nothing of them is simulated."""
    allow, public = ["statistic:releases=2"], ["judge"]
    policies.new(
        "year", epsilon=1.0, delta=1e-5, allow=allow, public_columns=public, project=project
    )
    policies.activate("year", project)
    judged = {"mechanism": "statistic", "features": "verdict:judge"}
    for part in (table.head(table.height // 2), table):
        release = make_release(part, project=project, **judged)
        assert "taken to be public" in (release.path / "CARD.md").read_text()


def test_a_template_that_fails_fails_before_the_charge(table, project, monkeypatch):
    broken = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(
        "{% block page %}{{ card.nobody.knows }}{% endblock %}"
    )
    first = {"project": project, "epsilon": 1.0, "mechanism": "rr", "once": True}
    with monkeypatch.context() as patch, pytest.raises(jinja2.UndefinedError):
        patch.setattr(card, "_load_template", lambda: broken)
        make_release(table, **first)
    assert overview.list_releases(project) == []
    assert not make_release(table, **first).reused
