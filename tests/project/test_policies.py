"""Policies: one joint price, several kinds of events, and what a change of terms costs."""

import json
import math
import sqlite3
from dataclasses import asdict, replace
from typing import Any

import pytest
from support import upper_bounds, world
from support.commands import run
from support.deaths import killed_in
from support.lives import put_into_force
from support.preferences import STATISTIC, dump, spent
from support.releases import make_release

import labelguard as lg
from labelguard.accounting import ball, gaussian, joint
from labelguard.accounting import randomized_response as rr
from labelguard.budget import pricing
from labelguard.budget.policy import Allowance, Policy
from labelguard.budget.request import PolicyRequest
from labelguard.errors import LedgerError, PolicyError
from labelguard.ledger.journal import Anchor
from labelguard.ledger.ledger import Ledger
from labelguard.project import policies
from labelguard.project.opening import abandon
from labelguard.report import overview
from labelguard.report.overview import read_labeler
from labelguard.simulation import simulate

BOTH = (Allowance("rr", 50), Allowance("statistic", 12))


@pytest.fixture(scope="module")
def table():
    """Labels of 25 labelers."""
    return simulate(labelers=25, labels=500, items=120)


def details(policy):
    return pricing.describe_quote(policy, *pricing.compute_quote(policy))


def joint_delta(policy):
    """δ of all allowances at the policy's ε, at the prices that are stored."""
    parts = pricing.build_components(policy, pricing.compute_quote(policy)[1])
    return joint.delta(list(parts.values()), policy.epsilon)


# ---------------------------------------------------------------- prices


@pytest.mark.parametrize(
    "policy",
    [
        Policy(3, 1e-5, BOTH),
        Policy(3, 1e-5, (Allowance("rr", 50, 1.0), Allowance("statistic", 12, 3.0))),
        Policy(1, 1e-6, (Allowance("statistic", 52), Allowance("rr", 8, block=3))),
    ],
    ids=["both", "shares", "blocks"],
)
def test_all_allowances_together_cost_the_budget_and_hardly_less(policy):
    shown = details(policy)
    assert joint_delta(policy) <= pricing.delta_for_continuous_noise(policy)
    assert policy.epsilon - 1e-3 < shown.epsilon <= policy.epsilon
    parts = list(pricing.build_components(policy, pricing.compute_quote(policy)[1]).values())
    assert upper_bounds.rdp(parts, policy.delta) >= shown.epsilon
    assert all(event.epsilon_alone < shown.epsilon for event in shown.events)


def test_noise_ten_percent_too_small_would_exceed_the_budget():
    policy = Policy(3, 1e-5, BOTH)
    parts = pricing.build_components(policy, pricing.compute_quote(policy)[1])
    sigma = parts["statistic"]
    less = [parts["rr"], replace(sigma, noise_multiplier=0.9 * sigma.noise_multiplier)]
    assert joint.delta(less, 3) > policy.delta


def test_one_allowance_costs_what_it_always_did():
    coins = pricing.compute_prices(Policy(3, 1e-5, (Allowance("rr", 50),)), "rr")
    assert coins == {50: {"threshold": rr.threshold(rr.calibrate(3, 1e-5, 50))}}
    policy = Policy(3, 1e-5, (Allowance("statistic", 12),), ties="zero")
    sigma = gaussian.calibrate(3, 1e-5 - 12 * (1 + math.exp(3)) * 2.0**-100, 12)
    found = pricing.compute_prices(policy, "statistic")
    assert found == {12: {"noise_multiplier": sigma}}
    assert pricing.parse_price(pricing.format_price(found[12])) == found[12]


BALL = Allowance("statistic", 1, ball=4)


def test_ball_noise_has_a_joint_price_that_the_ledger_keeps():
    policy = Policy(1, 1e-5, (Allowance("rr", 50), BALL))
    assert joint_delta(policy) <= pricing.delta_for_continuous_noise(policy) < policy.delta
    stored, prices = pricing.compute_quote(policy)
    assert stored["accountant"].endswith("× ball")
    [(k, price)] = prices["statistic"].items()
    assert k == 1 and list(price) == ["scale", "components"] and price["components"] == 4
    assert pricing.parse_price(pricing.format_price(price)) == price
    shown = details(policy)
    assert 1 - 1e-4 < shown.epsilon <= 1
    ball_of = shown.events[1]
    assert (ball_of.noise, ball_of.scale, ball_of.components) == ("ball", price["scale"], 4)
    assert ball_of.noise_multiplier is None and "d ≥ 4" in ball_of.in_words()
    parts = pricing.build_components(policy, prices)
    less = replace(parts["statistic"], scale=0.9 * price["scale"])
    assert joint.delta([parts["rr"], less], 1) > 1.5 * policy.delta


def test_ball_noise_alone_costs_what_its_accountant_says():
    policy = Policy(1, 1e-5, (BALL,), ties="zero")
    scale = ball.calibrate(1, 1e-5 - (1 + math.e) * 2.0**-100, 4)
    assert pricing.compute_prices(policy, "statistic") == {1: {"scale": scale, "components": 4}}
    assert Policy.from_json(policy.to_json()) == policy
    assert PolicyRequest(event="statistic", ball=4).first_policy(10).allowances == (BALL,)


def test_bits_of_noise_are_paid_for_every_release_and_no_bit_of_a_coin():
    coins = Policy(3, 1e-5, (Allowance("rr", 50),))
    assert pricing.delta_for_continuous_noise(coins) == coins.delta
    sums = Policy(40, 1e-9, (Allowance("statistic", 12), Allowance("rr", 50)))
    taken = 12 * (1 + math.exp(40)) * 2.0**-100
    assert pricing.delta_for_continuous_noise(sums) == pytest.approx(1e-9 - taken, rel=1e-15)
    assert taken > 1e-13


def test_alone_every_allowance_costs_the_same_unless_shares_say_otherwise():
    even = details(Policy(3, 1e-5, BOTH)).events
    assert even[0].epsilon_alone == pytest.approx(even[1].epsilon_alone, rel=1e-3)
    shares = (Allowance("rr", 50, 1.0), Allowance("statistic", 12, 2.0))
    uneven = details(Policy(3, 1e-5, shares)).events
    ratio = uneven[1].epsilon_alone / uneven[0].epsilon_alone
    assert ratio == pytest.approx(2, rel=1e-2)


@pytest.mark.quick(*(f"asked{number}" for number in range(0, 16, 3)))
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"allow": ["rr:uses=0,block=1"]}, "at least 1"),
        ({"allow": []}, "at least one"),
        ({"allow": ["rr:uses=5,block=1", "rr:uses=6,block=1"]}, "each kind of event once"),
        ({"shares": "statistic=2"}, "names statistic"),
        ({"shares": "rr=-1"}, "above 0"),
        ({"delta": 0, "allow": ["statistic:releases=1"]}, "needs a delta above 0"),
        ({"allow": ["statistic:releases=2,ball=4"]}, "one statistic release.*found 2"),
        ({"allow": ["rr:uses=5,block=1,ball=4"]}, "an allowance of rr has no ball"),
        ({"allow": ["statistic:releases=1,ball=0"]}, "for 1 component or more, found 0"),
        ({"epsilon": 60, "allow": ["statistic:releases=1"]}, "256-bit numbers costs"),
        ({"ties": "drop", "allow": ["rr:uses=5,block=1"]}, "--tie-status-public"),
        ({"ties": "zero"}, "statistics alone"),
        *(({"epsilon": bad}, "epsilon must be") for bad in (math.nan, math.inf, 0, -1, 9e-13)),
        *(({"delta": bad}, "delta must be") for bad in (math.nan, 1, -1e-9)),
        ({"name": "a/b"}, "letters, digits"),
    ],
)
def test_what_cannot_be_a_policy_is_said(asked, said, project):
    options = {"name": "p", "epsilon": 3, "delta": 1e-5, "allow": ["rr:uses=5,block=1"]} | asked
    with pytest.raises(PolicyError, match=said):
        policies.new(options.pop("name"), project=project, **options)
    assert policies.listing(project) == []


# ---------------------------------------------------------------- in a project


def test_a_policy_is_kept_as_it_was_made_and_only_used_when_activated(table, project):
    shown = policies.new(
        "one", epsilon=3, delta=1e-5, allow=["rr:uses=50,block=1", "statistic:releases=12"],
        project=project,
    )  # fmt: skip
    assert shown.state == "draft" and shown.quote.adjacency == "replace_labels"
    with pytest.raises(PolicyError, match="labelguard policy activate NAME"):
        make_release(table, mechanism="rr", project=project)
    with pytest.raises(PolicyError, match="a policy 'one' already"):
        policies.new("one", epsilon=1, delta=1e-5, allow=["rr:uses=1,block=1"], project=project)
    policies.activate("one", project)
    assert policies.show(None, project) == replace(shown, state="active", activation=None)
    policies.new("two", epsilon=1, delta=1e-6, allow=["rr:uses=1"], project=project)
    both = json.loads(run("policy", "show", "--json", project=project).stdout)
    assert both["policy"]["name"] == "one" and [one["name"] for one in both["others"]] == ["two"]
    text = run("policy", "show", project=project).stdout
    assert "policy       one (active)" in text and "two in force" in text
    assert policies.activate("one", project).closes is None  # nothing happens twice
    assert len(overview.read_journal(project.state)) == 4


def test_coins_and_statistics_are_charged_apart_and_neither_knows_the_others_labels(table, project):
    put_into_force(project, "both", "rr:uses=50", "statistic:releases=12")
    coins = make_release(table, mechanism="rr", project=project)
    sums = make_release(table, project=project, **STATISTIC)
    assert coins.card["counts"]["rows"] == len(table)
    assert sums.card["statistic"]["labels_in_window"] == len(table)
    assert sums.card["counts"]["charged"] == 25
    again = make_release(table.slice(0, 100), mechanism="rr", project=project, exhausted="drop")
    assert again.card["counts"]["charged"] == 0
    assert set(lg.load(again).rows()) <= set(lg.load(coins).rows())
    one, other = overview.read_budget(project.state).allowances
    assert (one.event, one.used) == ("rr", coins.card["counts"]["charged"])
    assert (other.event, other.used, other.left) == ("statistic", 25, 11 * 25)
    assert "priced together with 12 statistic releases" in coins.card["privacy"]["accounting"]
    assert "priced together with 50 randomized blocks" in sums.card["privacy"]["accounting"]
    assert overview.verify(project.state).ok


def test_neither_a_policys_name_nor_the_order_of_events_changes_a_table(
    table, tmp_path, monkeypatch
):
    world.fix_randomness(monkeypatch)
    released = []
    for name, order in (("both", (0, 1)), ("other", (1, 0))):
        home = lg.init(tmp_path / name)
        put_into_force(home, name, "rr:uses=50,block=1", "statistic:releases=12")
        runs = ({"mechanism": "rr"}, STATISTIC)
        found = {
            i: make_release(table.slice(0, 100), project=home, workers=1, **runs[i]) for i in order
        }
        released.append([(found[i].path / "data.parquet").read_bytes() for i in (0, 1)])
    assert released[0] == released[1]


def test_a_card_counts_labelers_whom_the_policy_in_force_never_charged(table, project):
    for name, rows in (("first", table.slice(0, 400)), ("second", table)):
        put_into_force(project, name, "rr:uses=9")
        card = make_release(rows, mechanism="rr", project=project).card
    assert 0 < card["counts"]["charged"] < card["counts"]["labelers"]
    assert (card["budget"]["used"]["min"], card["budget"]["left"]["max"]) == (0, 9)


def test_a_request_without_a_budget_takes_the_policys(table, project):
    put_into_force(project, "p", "rr:uses=30,block=1")
    made_now = make_release(table, mechanism="rr", project=project, exhausted="drop")
    assert made_now.card["privacy"]["epsilon"] == 3
    for options, said in (
        ({"mechanism": "rr", "epsilon": 1, "again": True, "exhausted": "drop"}, "stricter ε = 1"),
        ({"block": 10}, "block = 1"),
        (STATISTIC, "pays for rr, not for statistic"),
    ):
        with pytest.raises(PolicyError, match=said):
            make_release(table.slice(0, 3), project=project, **options)
    few = make_release(table.slice(0, 9), project=project, mechanism="auto", exhausted="drop")
    assert few.card["mechanism"] == "rr"


# ---------------------------------------------------------------- other terms


def test_a_changed_policy_is_paid_on_top_of_the_full_price_of_the_old_one(table, project):
    put_into_force(project, "old", "rr:uses=50,block=1", "statistic:releases=12")
    few = table.slice(0, 10)  # nearly nothing is used
    first = make_release(few, mechanism="rr", project=project)
    policies.new("new", epsilon=2, delta=5e-6, allow=["rr:uses=20,block=1"], project=project)
    told = policies.preview("new", project)
    assert asdict(told.closes) == {"name": "old", "epsilon": 3.0, "delta": 1e-5}
    assert asdict(told.total) == {"epsilon": 5.0, "delta": pytest.approx(1.5e-5)}
    assert policies.activate("new", project) == told
    assert asdict(overview.read_budget(project.state).lifetime) == {
        "epsilon": 5.0, "delta": pytest.approx(1.5e-5), "policies": 2
    }  # fmt: skip
    assert spent(project) == 0  # places of the new one are unused
    card = make_release(table, mechanism="rr", project=project).card
    # Labels that the old policy released are in it: both pay for this release.
    assert (card["privacy"]["epsilon"], card["privacy"]["delta"]) == (5.0, pytest.approx(1.5e-5))
    assert card["privacy"]["newly_charged"] == {"epsilon": 2.0, "delta": 5e-6}
    # What the old policy released keeps its value, its price, and costs nothing.
    assert card["counts"]["released_before"] == 10
    frame = lg.load(make_release(few, mechanism="rr", project=project))
    assert set(frame.rows()) == set(lg.load(first).rows())
    assert overview.verify(project.state).ok


def test_a_draft_can_be_dropped_and_its_name_taken_again(project):
    put_into_force(project, "first", "rr:uses=5,block=1")
    for _ in range(2):
        policies.new("typo", epsilon=1, delta=1e-6, allow=["rr:uses=5,block=1"], project=project)
        assert policies.close("typo", project).epsilon == 0
        assert overview.verify(project.state).ok
        assert [one.name for one in policies.listing(project)] == ["first"]
    with pytest.raises(PolicyError, match="there is no policy 'typo'"):
        policies.close("typo", project)
    put_into_force(project, "typo", "statistic:releases=3", epsilon=1, delta=1e-6)
    assert overview.verify(project.state).ok
    assert [one.kind for one in overview.read_journal(project.state)].count("dropped") == 2


def test_a_policy_can_end_without_another(table, project):
    put_into_force(project, "p", "rr:uses=40,block=1")
    make_release(table.slice(0, 20), mechanism="rr", project=project)  # nearly nothing is used
    assert policies.close(project=project).epsilon == 3
    assert overview.read_budget(project.state).lifetime.epsilon == 3
    [own] = read_labeler(str(table["labeler_id"][0]), project.state).allowances
    assert 0 < own.used < own.allowed and own.left == 0
    with pytest.raises(PolicyError, match="no policy is in force"):
        make_release(table, mechanism="rr", project=project)
    with pytest.raises(PolicyError, match="no policy is in force"):
        policies.close(project=project)
    with pytest.raises(PolicyError, match="'p' is closed already"):
        policies.close("p", project)
    assert overview.verify(project.state).ok


def test_what_was_agreed_to_must_still_be_so(project):
    put_into_force(project, "p", "rr:uses=40,block=1")
    policies.new("q", epsilon=1, delta=1e-6, allow=["rr:uses=9,block=1"], project=project)
    agreed = policies.preview("q", project)
    put_into_force(project, "between", "rr:uses=9,block=1", epsilon=1)
    with pytest.raises(PolicyError, match="the price is another now"):
        policies.activate("q", project, agreed=agreed)
    assert policies.show(None, project).name == "between"


def test_policies_that_promise_different_things_do_not_add_up(project):
    put_into_force(project, "p", "rr:uses=5,block=1")
    terms: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "allow": ["rr:uses=5,block=1"]}
    for name, other, said in (
        ("q", {"unit": "item"}, "another unit"),
        ("r", {"ties": "drop", "tie_status_public": True}, "another tie status public"),
    ):
        policies.new(name, project=project, **terms | other)
        with pytest.raises(PolicyError, match=said):
            policies.activate(name, project)


def test_an_unfinished_release_stands_in_the_way_until_it_is_given_up(table, project):
    put_into_force(project, "p", "rr:uses=30,block=1")
    policies.new("q", epsilon=1, delta=1e-6, allow=["rr:uses=30,block=1"], project=project)
    with killed_in(Ledger, "commit"):
        make_release(table, mechanism="rr", project=project)
    with pytest.raises(PolicyError, match="is unfinished"):
        policies.activate("q", project)
    with pytest.raises(LedgerError, match="names 0 unfinished"):
        abandon("r9", project)
    charged = spent(project)
    given_up = abandon("r0001", project)
    assert given_up.charged == charged == spent(project)
    assert overview.list_releases(project.state)[0].state == "abandoned"
    policies.activate("q", project)
    release = make_release(table, mechanism="rr", project=project)  # what was charged is free
    assert release.card["counts"]["released_before"] == charged
    assert overview.verify(project.state).ok


# ---------------------------------------------------------------- the command line


def test_activating_asks_after_showing_the_total(project):
    put_into_force(project, "p", "rr:uses=15,block=1")
    policies.new("q", epsilon=1, delta=1e-6, allow=["rr:uses=30,block=1"], project=project)
    refused = run("policy", "activate", "q", project=project, input="n\n", code=1)
    assert "ε = 4, δ = 1.1e-5" in refused.output and policies.show(None, project).name == "p"
    run("policy", "activate", "q", project=project, input="y\n")
    assert policies.show(None, project).name == "q"


def test_an_export_holds_every_table_and_no_secret(table, project):
    put_into_force(project, "p", "rr:uses=15,block=1", "statistic:releases=1")
    make_release(table, mechanism="rr", project=project)
    file = project.state.parent / "e.json"
    run("budget", "export", "-o", file, project=project)
    found = json.loads(file.read_text())
    tables = dump(project.state)
    assert {name: len(rows) for name, rows in found.items()} == {
        name: len(tables[name]) for name in found
    }
    assert set(tables) - set(found) == {"meta"}
    assert sum(row["used"] for row in found["counters"]) == spent(project)
    assert not {"map", "idempotency_key"} & set(found["releases"][0])
    assert "exists" in run("budget", "export", "-o", file, project=project, code=1).output


def test_an_anchor_proves_what_the_journal_held(table, project):
    put_into_force(project, "p", "rr:uses=15,block=1")
    kept = overview.verify(project.state).anchor
    make_release(table, mechanism="rr", project=project)
    assert overview.verify(project.state, kept).ok
    newest = overview.verify(project.state).anchor
    # Somebody cuts the journal off, and puts everything that would tell away.
    with sqlite3.connect(project.state / "ledger.sqlite3") as ledger:
        ledger.executescript(
            "DELETE FROM journal WHERE number > 3; DELETE FROM charges; DELETE FROM counters;"
            "DELETE FROM releases; DELETE FROM sources; DELETE FROM identities;"
        )
    ledger.close()
    for path in (*project.releases.iterdir(), *project.private_maps.iterdir()):
        path.rename(project.state.parent / f"away-{path.parent.name}")
    assert overview.verify(project.state).ok  # the history that is left is consistent
    assert overview.verify(project.state, kept).ok
    verdict = overview.verify(project.state, newest)
    lost = f"does not hold entry {Anchor.parse(newest).number}"
    assert not verdict.ok and lost in verdict.fault


def test_the_policy_that_is_closed_need_not_be_the_newest(project):
    for name, epsilon in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        policies.new(
            name, epsilon=epsilon, delta=1e-6, allow=["rr:uses=9,block=1"], project=project
        )
    policies.activate("b", project)
    policies.activate("a", project)
    told = policies.preview("c", project)
    assert told.closes.name == "a" and told.total.epsilon == 6.0
    policies.activate("c", project)
    assert [p.state for p in policies.listing(project)] == ["closed", "closed", "active"]
    with pytest.raises(PolicyError, match="is closed"):
        policies.activate("a", project)
