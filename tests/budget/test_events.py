"""Kinds of priced events: how they are written, calibrated, stored, and told apart."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelguard.accounting import joint
from labelguard.accounting import randomized_response as rr
from labelguard.budget import events, pricing
from labelguard.budget.events import EVENTS
from labelguard.budget.policy import Allowance, Policy, choose_usual_delta
from labelguard.budget.request import PolicyRequest
from labelguard.errors import PolicyError

numbers = st.one_of(st.integers(1, 2**63), st.floats(1e-12, 2**23))


# Terms of an allowance of each kind.
TERMS = {
    "rr": ",block=5",
    "statistic": ",ball=4",
    "uls": ",q=0.25,steps=50",
    "els": ",q=0.125,steps=10,records=3",
    "els-group": ",q=0.125,steps=10,records=3",
    "aup": ",q=0.25,steps=50",
    "records": ",q=0.25,steps=50,updates=4",
}


def allowance(kind, uses=1, further=False):
    """One that a kind accepts."""
    terms = "" if kind.name in ("rr", "statistic") and not further else TERMS[kind.name]
    event, allowed, fields = events.parse_allowance(f"{kind.name}:{kind.counts}={uses}{terms}")
    return Allowance(event, allowed, **fields)


@pytest.mark.parametrize("kind", EVENTS.values(), ids=list(EVENTS))
def test_an_allowance_is_read_as_it_is_written(kind):
    written = f"{kind.name}:{kind.counts}=1{TERMS[kind.name]}"
    assert events.format_allowance(allowance(kind, further=True)) == written
    assert events.parse_allowance(f" {written} ") == events.parse_allowance(written)
    for wrong in (
        f"{kind.name}=12",
        f"{kind.name}:{kind.counts}=",
        f"{kind.name}:{kind.counts}=-1",
        f"{kind.name}:{kind.counts}=1,4",
        f"{kind.name}:{kind.counts}=²",
        f"{written},ball=",
        f"{written},ball=4,ball=4",
        f"{written},q=0.1,q=0.1",
    ):
        with pytest.raises(PolicyError, match=r"^--allow expects|an allowance of"):
            events.parse_allowance(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "uls:runs=1",
        "uls:runs=1,q=0.2",
        "uls:runs=1,q=0,steps=10",
        "uls:runs=1,q=1.1,steps=10",
        "uls:runs=1,q=x,steps=10",
        "uls:runs=1,q=0.2,steps=0",
        "uls:runs=1,q=0.2,steps=1e9",
        "uls:runs=1,q=0.2,steps=10,records=3",
        "els:runs=1,q=0.2,steps=10",
        "els:runs=1,q=0.2,steps=10,records=0",
        "rr:uses=3,block=1,ball=1",
        "rr:uses=3,block=",
        "statistic:releases=3,block=3",
    ],
)
def test_a_run_says_how_it_samples(wrong):
    with pytest.raises(PolicyError):
        events.parse_allowance(wrong)


def test_terms_of_one_kind_are_refused_with_another():
    found = allowance(EVENTS["uls"]).sampling
    for name in ("rr", "statistic", "els"):
        with pytest.raises(PolicyError):
            Allowance(name, 1, sampling=found)
    for name in ("rr", "uls", "els"):
        with pytest.raises(PolicyError):
            Allowance(name, 1, ball=4)
    with pytest.raises(PolicyError, match="allow uls:runs=1,q="):
        Allowance("uls", 1)


def test_what_is_not_proven_is_paid_for_only_where_the_policy_accepts_it():
    unproven = (allowance(EVENTS["aup"]),)
    with pytest.raises(PolicyError, match="--accept-unproven only"):
        Policy(2, 1e-5, unproven, ties="zero")
    accepted = Policy(2, 1e-5, unproven, ties="zero", accept_unproven=True)
    assert Policy.from_json(accepted.to_json()) == accepted
    assert [kind.name for kind in EVENTS.values() if not kind.proven] == ["aup"]


def test_an_unknown_kind_is_named_with_those_there_are():
    with pytest.raises(PolicyError, match="an allowance is for rr or statistic or"):
        Allowance("laplace", 1)


@pytest.mark.slow
@given(st.dictionaries(st.text(min_size=1), numbers))
def test_a_stored_price_comes_back_exactly(price):
    text = pricing.format_price(price)
    assert all(isinstance(number, str) for number in text.values())
    again = pricing.parse_price(text)
    assert again == price
    assert all(type(again[name]) is type(number) for name, number in price.items())


@pytest.mark.quick("1-rr", "1-els", "7-rr", "7-els")
@pytest.mark.parametrize("kind", EVENTS.values(), ids=list(EVENTS))
@pytest.mark.parametrize("uses", [1, 7])
def test_the_uses_that_a_policy_allows_cost_its_epsilon_at_the_stored_price(kind, uses):
    policy = Policy(
        2,
        1e-5,
        (allowance(kind, uses),),
        ties=kind.default_ties,
        unit=kind.units[0],
        accept_unproven=not kind.proven,
    )
    price = pricing.parse_price(
        pricing.format_price(pricing.compute_prices(policy, kind.name)[uses])
    )
    part = kind.component(price, uses)
    epsilon = joint.epsilon([part], pricing.delta_for_continuous_noise(policy))
    least = 2 - (1e-6 if not kind.name.startswith(("uls", "els", "records")) else 1e-2)
    assert least < epsilon <= 2 + 1e-9
    assert next(iter(kind.describe_noise(price))) in ("flip_probability", "noise")


@pytest.mark.parametrize("kind", EVENTS.values(), ids=list(EVENTS))
def test_uses_are_counted_of_what_a_first_release_pays_for(kind):
    if kind.counts_uses:
        [found] = PolicyRequest(1, 0.1, event=kind.name, uses=3).first_policy(1).allowances
        assert found == Allowance(kind.name, 3)
    else:
        with pytest.raises(PolicyError, match="--uses counts"):
            PolicyRequest(1, 0.1, event=kind.name, uses=3)


def test_a_block_goes_with_randomized_response_alone():
    [found] = PolicyRequest(1, 0.1, block=7).first_policy(1).allowances
    assert found == Allowance("rr", 1, block=7)
    for wrong in (0, 16_385):
        with pytest.raises(PolicyError):
            PolicyRequest(1, 0.1, block=wrong).first_policy(1)
    for kind in EVENTS.values():
        if kind.name != "rr":
            with pytest.raises(PolicyError, match="block"):
                PolicyRequest(1, 0.1, event=kind.name, block=7)
            with pytest.raises(PolicyError, match="block"):
                replace(allowance(kind), block=7)


def test_labels_of_an_abandoned_release_keep_their_values_and_are_in_no_sum():
    assert events.find_event_kind("rr").allows_reuse_of_labels("abandoned")
    assert events.find_event_kind("rr").allows_reuse_of_labels("committed")
    assert not events.find_event_kind("statistic").allows_reuse_of_labels("abandoned")
    assert events.find_event_kind("statistic").allows_reuse_of_labels("committed")
    assert not events.find_event_kind("uls").allows_reuse_of_labels("committed"), (
        "every run learns from all labels"
    )


def test_ties_are_coins_as_soon_as_labels_are_randomized():
    choose = events.choose_default_ties
    assert choose(["statistic"]) == "zero"
    assert choose(["statistic", "rr"]) == choose(["rr"]) == "coin"


@pytest.mark.parametrize("units", [1, 20, 9_999, 10_000, 10_001, 84_000, 10**7])
def test_the_usual_delta_is_the_largest_power_of_ten_that_protects_everybody(units):
    delta = choose_usual_delta(units)
    assert delta < 1 / (10 * units)
    assert delta == 1e-5 or 100 * units * delta > 1 - 1e-9


def test_a_block_costs_what_a_coin_does_whatever_its_size():
    prices = []
    for size in (1, 50, 16_384):
        policy = Policy(3, 1e-5, (Allowance("rr", 50, block=size),))
        assert Policy.from_json(policy.to_json()) == policy
        prices.append(pricing.compute_prices(policy, "rr"))
    assert prices == [{50: {"threshold": rr.threshold(rr.calibrate(3, 1e-5, 50))}}] * 3
    (priced,) = pricing.describe_quote(policy, *pricing.compute_quote(policy)).events
    assert priced.flip_probability == pytest.approx(0.473876, abs=1e-6)


def test_a_price_so_small_that_no_coin_has_it_is_refused():
    with pytest.raises(PolicyError, match="threshold"):
        pricing.compute_prices(Policy(1e-12, 0, (Allowance("rr", 10**8),)), "rr")
