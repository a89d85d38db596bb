"""A first release in Python fixes as much as one on the command line, and as knowingly."""

import pytest
from support.codings import NUMBERS
from support.surveys import survey

import labelguard as lg
from labelguard.errors import PolicyError
from labelguard.report import overview

BUDGET = {"epsilon": 3.0, "delta": 1e-5, "label_values": NUMBERS}


@pytest.mark.parametrize("options", [{}, {"mechanism": "rr"}, {"accept_little_use": True}])
def test_it_says_for_how_many_releases(options, project):
    with pytest.raises(PolicyError, match=r"once=True .* or uses=K, or recurring="):
        lg.privatize(survey(labelers=12), project=project, **BUDGET, **options)
    assert overview.list_releases(project) == []


def test_one_of_little_use_is_accepted_or_not_made(project):
    few = survey(labelers=6, per_labeler=2)
    with pytest.raises(PolicyError, match="to release it anyway: accept_little_use=True"):
        lg.privatize(few, project=project, once=True, **BUDGET)
    assert overview.list_releases(project) == []
    made = lg.privatize(few, project=project, once=True, accept_little_use=True, **BUDGET)
    assert lg.privatize(few, project=project, **BUDGET).id == made.id
    # Later ones are under the policy, which says how many there are.
    assert lg.privatize(few, project=project, again=True, exhausted="drop").card
