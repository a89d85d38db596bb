"""Features of style: what each function counts, and what is learnt of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from labelguard.errors import LabelguardError
from labelguard.learning.features import open_fitted, open_provider
from labelguard.learning.style import CLIP, FUNCTIONS, StyleFeatures
from labelguard.text import no_progress

NAMES = [one.name for one in FUNCTIONS]
PLAIN = "It rains in the sea town. Ships come home."


def _pairs(first, second, prompt="Why does it rain?"):
    return pa.table({"prompt": [prompt] * len(first), "first": first, "second": second})


def _raw(response, other=PLAIN):
    """What one response has more than another, before anything is standardised."""
    features = StyleFeatures({"center": np.zeros(len(NAMES)), "scale": np.full(len(NAMES), 1e-3)})
    found = 1e3 * features(_pairs([response], [other]))[0]
    return dict(zip(NAMES, found.tolist(), strict=True))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("words", f"{PLAIN} {PLAIN}"),
        ("sentences", "It rains. In the sea town. Ships come home."),
        ("sentence-length", "It rains in the sea town and all the ships come home."),
        ("lines", "It rains in the sea town.\nShips come home."),
        ("paragraphs", "It rains in the sea town.\n\nShips come home."),
        ("list-items", "It rains in:\n- the sea\n* the town\n1. Ships\n2) home"),
        ("headings", "## Rain\nIt rains in the sea town."),
        ("emphasis", "It **rains** in the sea town. Ships come home."),
        ("table-rows", "| rain | town |\n|---|---|\n| much | sea |"),
        ("links", "It rains: https://rain.example and [here](x)."),
        ("code", "It rains in `the sea town`. ```Ships come home```"),
        ("digits", "It rains 365 days in the sea town."),
        ("upper-case", "IT RAINS in the sea town. Ships come home."),
        ("punctuation", "It rains, in, the; sea: town... Ships, come home."),
        ("questions", "It rains in the sea town? Do ships come home?"),
        ("exclamations", "It rains in the sea town! Ships come home!"),
        ("parentheses", "It rains (in the sea town). Ships come home."),
        ("word-length", "Precipitation characterises maritime settlements."),
        ("variety", "It rains in the sea town. Ships come home laden with silver fish."),
        ("reading-ease", "It is wet. We go in. We sit."),
        ("overlap", "Why does it rain? It rains in the sea town."),
        ("hedges", "It may rain in the sea town. Perhaps ships come home."),
        ("negations", "It never rains in the sea town. No ships come home."),
        ("addressing", "It rains on you in your sea town. Ships come home."),
        ("first-person", "We say that I saw rain in my sea town."),
        ("apologies", "Sorry, it rains in the sea town. Unfortunately, ships come home."),
    ],
)
def test_each_function_counts_what_it_is_named_for(name, more):
    assert _raw(more)[name] > 0
    assert _raw(PLAIN, more)[name] == pytest.approx(-_raw(more)[name])
    assert _raw(more, more)[name] == 0


def test_every_function_is_tried_above():
    tried = test_each_function_counts_what_it_is_named_for.pytestmark[0].args[1]
    assert [name for name, _ in tried] == NAMES


def test_what_is_learnt_depends_on_distinct_responses_alone():
    first = [f"Answer {n}: {'very ' * n}well. " + "- item\n" * (n % 3) for n in range(40)]
    second = first[1:] + first[:1]
    one, other = StyleFeatures(), StyleFeatures()
    one.fit(_pairs(first, second))
    turned = _pairs(second[::-1] + first[:7], first[::-1] + second[:7])
    other.fit(turned)
    assert all(np.array_equal(one.state()[n], other.state()[n]) for n in ("center", "scale"))
    x = one(_pairs(first, second))
    assert np.array_equal(other(_pairs(second, first)), -x)
    assert x.shape == (40, len(NAMES)) and x.dtype == np.float32


def test_one_strange_response_stays_within_five_deviations():
    ordinary = [f"It rains {n} days. " * (1 + n % 3) for n in range(200)]
    features = StyleFeatures()
    features.fit(_pairs(ordinary, ordinary[::-1]))
    x = features(_pairs(["WHY?! " * 9_000, ""], [ordinary[0], "🙂\u200b\n\n"]))
    assert np.isfinite(x).all() and np.abs(x).max() <= 2 * CLIP
    assert np.abs(x[0]).max() > CLIP - 1


def test_a_restored_provider_computes_the_same_and_says_so():
    chats = [[{"role": "assistant", "content": f"{'well, ' * n}yes?"}] for n in range(9)]
    asked = [[{"role": "user", "content": "Does it?"}]] * 9
    pairs = pa.table({"prompt": asked, "first": chats, "second": chats[::-1]})
    fitted = open_fitted("style+length", pairs, no_progress)
    again = open_provider("style+length", fitted.state())
    assert np.array_equal(fitted(pairs), again(pairs)) and fitted.identity() == again.identity()
    with pytest.raises(LabelguardError, match="take no options"):
        open_provider("style:words")
    with pytest.raises(LabelguardError, match="must be fitted"):
        open_provider("style")(pairs)
