"""The ceiling of a project: no sum of policies passes it, raising it is told, restores obey it."""

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import run
from support.preferences import TABLE
from support.releases import make_release

import labelguard as lg
from labelguard.budget import pricing
from labelguard.budget.policy import Allowance, Policy
from labelguard.budget.pricing import Total
from labelguard.errors import LedgerError, PolicyError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import policies as ledger_policies
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import Ceiling
from labelguard.project import policy_facts
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.report import overview

PRICE: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "mechanism": "rr", "uses": 3}


def raise_to(project, ceiling, *yes, **options):
    return run("project", "ceiling", "--raise", ceiling, *yes, project=project, **options)


def ceiling(project):
    return OpenProject.open(project.state).ledger.policies.ceiling()


def test_init_fixes_it_and_the_defaults_are_those_that_are_told(tmp_path):
    assert ceiling(lg.init(tmp_path / "a")) == Ceiling() == Ceiling(10, 1e-4)
    told = run("init", tmp_path / "b").stdout
    assert "at most ε = 10, δ = 0.0001" in told
    run("init", tmp_path / "c", "--max-epsilon", "4", "--max-delta", "0")
    assert ceiling(Project(tmp_path / "c" / ".labelguard")) == Ceiling(4, 0)
    with pytest.raises(PolicyError, match="epsilon must be"):
        lg.init(tmp_path / "d", max_epsilon=float("inf"))


def test_an_init_that_is_repeated_after_a_crash_keeps_its_ceiling(tmp_path):
    home = lg.init(tmp_path, max_epsilon=4)
    (home.state / "labelguard.toml").unlink()  # written last
    with pytest.raises(PolicyError, match="was made with the ceiling ε = 4"):
        lg.init(tmp_path)
    assert ceiling(lg.init(tmp_path, max_epsilon=4)) == Ceiling(4)


# ---------------------------------------------------------------- raising


def test_it_is_raised_after_asking_and_never_lowered(project):
    no = raise_to(project, "20,1e-4", input="n\n", code=1)
    assert "only this is promised" in no.stderr
    assert ceiling(project) == Ceiling()
    raise_to(project, "20,1e-4", input="y\n")
    told = overview.read_journal(project.state)[-1].body
    assert told == {"max_epsilon": 20.0, "max_delta": 1e-4}
    for lower in ("10,1e-4", "20,1e-5", "30,1e-5", "20,1e-4"):
        assert "never lowered" in raise_to(project, lower, "--yes", code=1).stderr
    for wrong in ("20", "x,y", "nan,0", "20,1", "inf,0"):
        assert len(raise_to(project, wrong, "--yes", code=1).stderr.splitlines()) == 1
    assert ceiling(project) == Ceiling(20)


def test_what_is_shown_afterwards_promises_the_raised_one_only(project):
    first = make_release(TABLE, **PRICE, project=project)
    assert first.card["privacy"]["ceiling"] == {"epsilon": 10.0, "delta": 1e-4}
    policy_facts.raise_ceiling(Ceiling(20, 1e-3), project)
    again = make_release(TABLE, **PRICE, again=True, exhausted="drop", project=project)
    assert again.card["privacy"]["ceiling"] == {"epsilon": 20.0, "delta": 1e-3}
    assert overview.read_budget(project.state).ceiling == Ceiling(20, 1e-3)
    text = (again.path / "CARD.md").read_text()
    assert "ε = 20, δ = 0.001, the project's ceiling" in text and "ε = 10" not in text
    shown = policy_facts.show_ceiling(project)
    assert asdict(shown.left) == pytest.approx({"epsilon": 17, "delta": 0.00099})


def test_a_ceiling_that_others_wrote_into_the_database_is_refused(project):
    """The newest entry is genuine, so the ledger opens; the one that tells the ceiling is not."""
    make_release(TABLE, **PRICE, project=project)
    ledger = OpenProject.open(project.state).ledger
    with ledger._engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE journal SET body = replace(body, '10.0', '99.0') WHERE number = 1"
        )
    with pytest.raises(LedgerError, match="ceiling is not known: journal entry 1 was altered"):
        make_release(TABLE, **PRICE, again=True, exhausted="drop", project=project)


# ---------------------------------------------------------------- sums


def test_ten_policies_of_a_tenth_reach_the_ceiling_and_no_more():
    """Sums of binary fractions would miss it by a little, in either direction."""
    total = pricing.sum_budgets([Total(0.1, 1e-5)] * 10)
    assert total == Total(1.0, 1e-4) and sum([0.1] * 10) != 1.0
    Ceiling(1.0, 1e-4).check(total)
    with pytest.raises(PolicyError, match=r"--raise 1\.1,0\.00011"):
        Ceiling(1.0, 1e-4).check(pricing.sum_budgets([total, Total(0.1, 1e-5)]))


def test_a_policy_that_would_pass_it_is_not_put_into_force_whatever_was_closed(tmp_path):
    keys = KeyRing.create(tmp_path / "keys")
    ledger = Ledger.create(f"sqlite:///{tmp_path / 'ledger'}", keys, ceiling=Ceiling(10, 1e-4))
    epoch = ledger.begin_job()
    for name in ("first", "second", "third"):
        ledger.policies.add(None, name, Policy(4.0, 1e-6, (Allowance("rr", 4),)))
    for name in ("first", "second"):
        ledger.policies.close(epoch, ledger.policies.activate(epoch, name))
    with pytest.raises(PolicyError, match="--raise 12,"):
        ledger.policies.activate(epoch, "third")
    assert ledger.policies.active() is None


BUDGETS = st.sampled_from([(0.5, 1e-6), (1.0, 2e-5), (3.0, 1e-5), (4.0, 9e-5), (12.0, 1e-6)])
ACTS = st.one_of(
    st.tuples(st.just("activate"), BUDGETS),
    st.tuples(st.just("close"), st.none()),
    st.tuples(st.just("raise"), st.tuples(st.integers(1, 20), st.integers(1, 20))),
)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(acts=st.lists(ACTS, min_size=3, max_size=12), number=st.uuids())
def test_no_life_of_a_project_passes_the_ceiling_of_its_time(acts, number, tmp_path_factory):
    """Also: what fits is never refused, so the ceiling does not shrink."""
    directory = tmp_path_factory.mktemp("life")
    keys = KeyRing.create(directory / "keys")
    ledger = Ledger.create(f"sqlite:///{directory / 'ledger'}", keys)
    epoch = ledger.begin_job()
    present = Ceiling()
    for place, (act, budget) in enumerate(acts):
        active, before = ledger.policies.active(), pricing.sum_budgets(ledger.policies.history())
        if act == "raise":
            asked = Ceiling(float(budget[0]), budget[1] * 1e-5)
            higher = asked.epsilon >= present.epsilon and asked.delta >= present.delta
            try:
                with ledger.transaction(epoch) as connection:
                    ledger_policies.raise_ceiling(connection, asked)
                assert higher and asked != present
                present = asked
            except PolicyError:
                assert not higher or asked == present
        elif act == "close" and active:
            ledger.policies.close(epoch, active)
        elif act == "activate":
            policy = Policy(*budget, (Allowance("rr", 4),))
            ledger.policies.add(None, f"p{place}", policy)
            fits = (
                before.epsilon + budget[0] <= present.epsilon + 1e-9
                and before.delta + budget[1] <= present.delta + 1e-12
            )
            try:
                ledger.policies.activate(epoch, f"p{place}")
                assert fits
            except PolicyError:
                assert not fits
                assert ledger.policies.active() == active  # nothing is closed for it
        total = pricing.sum_budgets(ledger.policies.history())
        assert total.epsilon <= present.epsilon and total.delta <= present.delta
    assert ledger.policies.ceiling() == present and ledger.find_fault() is None


# ---------------------------------------------------------------- one request


def test_leaving_epsilon_out_or_asking_for_more_is_the_same_request(project):
    first = make_release(TABLE, **PRICE, project=project)
    before = overview.read_journal(project.state)[-1]
    more = ({"epsilon": 8}, {"epsilon": 8, "delta": 1e-3})
    for options in ({}, PRICE, *more, {"mechanism": "rr", "uses": 3}):
        again = make_release(TABLE, **options, project=project)
        assert again.reused and again.id == first.id
        noted = [n for n in again.notes if "the project gives ε = 3, δ = 1e-5 in all" in n]
        assert [n.startswith("asked: ε = 8") for n in noted] == [True] * (options in more)
    assert overview.read_journal(project.state)[-1] == before
