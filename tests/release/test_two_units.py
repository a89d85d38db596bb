"""What a card says of two units together."""

from __future__ import annotations

import json

import pytest
from support.leaving import PRICE, labels_table

import labelguard as lg
from labelguard.accounting import collusion
from labelguard.accounting.components import RandomizedBlocks
from labelguard.release.card import rounded_up

ALONE = collusion.epsilon([RandomizedBlocks.calibrate(3, 1e-5, 12)], 1e-5)


@pytest.mark.parametrize("own", [True, False], ids=["own numbers", "an allowance"])
def test_a_card_states_the_price_of_two(own, project):
    if not own:
        allowed = ["rr:uses=12,block=1"]
        lg.policies.new("first", epsilon=3, delta=1e-5, allow=allowed, project=project)
        lg.policies.activate("first", project)
    more = PRICE if own else {"workers": 1}
    made = lg.privatize(labels_table(), project=project, **more)
    found = json.loads((made.path / "card.json").read_text())["privacy"]["two_units"]
    assert found == made.card["privacy"]["two_units"]
    assert found["delta"] == 1e-5 and 3 < found["epsilon"] < 6
    assert own or found["epsilon"] == ALONE
    text = (made.path / "CARD.md").read_text()
    assert "two labelers may change together" in text
    assert f"ε = {rounded_up(found['epsilon'])}" in text


def test_a_price_in_words_is_never_less_than_it_is():
    assert [rounded_up(one) for one in (6.7061, 6.0, 4.531)] == ["6.71", "6", "4.54"]
