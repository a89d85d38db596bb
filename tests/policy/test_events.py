"""Kinds of priced events: how they are written, calibrated, stored, and told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelguard.accounting import joint
from labelguard.errors import PolicyError
from labelguard.policy import events, pricing
from labelguard.policy.events import EVENTS
from labelguard.policy.policy import Allowance, Policy, Request, usual_delta

numbers = st.one_of(st.integers(1, 2**63), st.floats(1e-12, 2**23))


@pytest.mark.parametrize("kind", EVENTS.values(), ids=list(EVENTS))
def test_an_allowance_is_read_as_it_is_written(kind: events.EventKind) -> None:
    assert events.parse(f" {kind.name}:{kind.counts}=12 ") == (kind.name, 12)
    for wrong in (
        f"{kind.name}=12",
        f"{kind.name}:{kind.counts}=",
        f"{kind.name}:{kind.counts}=-1",
    ):
        with pytest.raises(PolicyError, match="--allow expects rr:labels=NUMBER or statistic:"):
            events.parse(wrong)


def test_an_unknown_kind_is_named_with_those_there_are() -> None:
    with pytest.raises(PolicyError, match="is for rr or statistic, found 'laplace'"):
        Allowance("laplace", 1)


@given(st.dictionaries(st.text(min_size=1), numbers))
def test_a_stored_price_comes_back_exactly(price: dict[str, float]) -> None:
    text = pricing.written(price)
    assert all(isinstance(number, str) for number in text.values())
    again = pricing.read(text)
    assert again == price
    assert all(type(again[name]) is type(number) for name, number in price.items())


@pytest.mark.parametrize("kind", EVENTS.values(), ids=list(EVENTS))
@pytest.mark.parametrize("uses", [1, 7])
def test_the_uses_that_a_policy_allows_cost_its_epsilon_at_the_stored_price(
    kind: events.EventKind, uses: int
) -> None:
    policy = Policy(2, 1e-5, (Allowance(kind.name, uses),), ties=kind.default_ties)
    price = pricing.read(pricing.written(pricing.prices(policy, kind.name, np.array([uses]))[uses]))
    part = kind.component(policy.ties)(count=uses, **price)
    epsilon = joint.epsilon([part], pricing.continuous_delta(policy))
    assert 2 - 1e-6 < epsilon <= 2 + 1e-9
    assert list(kind.noise(price, policy.ties)) in (["flip_probability"], ["noise_multiplier"])


@pytest.mark.parametrize("kind", EVENTS.values(), ids=list(EVENTS))
def test_the_option_of_one_kind_is_refused_beside_another(kind: events.EventKind) -> None:
    assert Request(1, 0.1, event=kind.name, **{kind.option: 3}).first_policy(1).allowances == (
        Allowance(kind.name, 3),
    )
    for other in EVENTS.values():
        if other is not kind:
            with pytest.raises(PolicyError, match=f"--{kind.option.replace('_', '-')}"):
                Request(1, 0.1, event=other.name, **{kind.option: 3})


def test_labels_of_an_abandoned_release_keep_their_values_and_are_in_no_sum() -> None:
    assert events.kind("rr").knows("abandoned") and events.kind("rr").knows("committed")
    assert not events.kind("statistic").knows("abandoned")
    assert events.kind("statistic").knows("committed")


def test_ties_are_coins_as_soon_as_labels_are_randomized() -> None:
    assert events.default_ties(["statistic"]) == "zero"
    assert events.default_ties(["statistic", "rr"]) == events.default_ties(["rr"]) == "coin"


@pytest.mark.parametrize("units", [1, 20, 9_999, 10_000, 10_001, 84_000, 10**7])
def test_the_usual_delta_is_the_largest_power_of_ten_that_protects_everybody(units: int) -> None:
    delta = usual_delta(units)
    assert delta < 1 / (10 * units)
    assert delta == 1e-5 or 100 * units * delta > 1 - 1e-9
