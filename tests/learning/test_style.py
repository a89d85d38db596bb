"""Features of style: what each function counts, and what is learnt of them.

Features of sources: who wrote each response, within public strata.
"""

import numpy as np
import pyarrow as pa
import pytest

from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.learning import sources
from labelguard.learning.columns import FeatureColumn, parse_feature_columns
from labelguard.learning.features import fit_features, open_provider
from labelguard.learning.sources import SourceFeatures
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
    fitted = fit_features("style+length", pairs, no_progress)[0]
    again = open_provider("style+length", fitted.state())
    assert np.array_equal(fitted(pairs), again(pairs)) and fitted.identity() == again.identity()
    with pytest.raises(LabelguardError, match="take no options"):
        open_provider("style:words")
    with pytest.raises(LabelguardError, match="must be fitted"):
        open_provider("style")(pairs)


def pairs(first, second, stratum=None):
    columns = {"source_model_first": first, "source_model_second": second}
    return pa.table(columns | ({"stratum_language": stratum} if stratum else {}))


def fitted(table, by=None):
    provider = SourceFeatures("model", by)
    provider.fit(table)
    return provider


def test_each_source_counts_plus_one_first_and_minus_one_second():
    table = pairs(["a", "b", "c", "a"], ["b", "c", "a", "a"])
    provider = fitted(table)
    assert provider.names() == ("a", "b", "c")
    assert provider(table).tolist() == [[1, -1, 0], [0, 1, -1], [-1, 0, 1], [0, 0, 0]]
    assert provider(table).dtype == np.float32


def test_a_source_has_a_coordinate_in_every_stratum_it_is_in():
    table = pairs(["a", "a", "b"], ["b", "c", "a"], ["de", "en", "de"])
    provider = fitted(table, "language")
    assert provider.names() == ("de: a", "de: b", "en: a", "en: c")
    assert provider(table).tolist() == [[1, -1, 0, 0], [0, 0, 1, -1], [-1, 1, 0, 0]]


def test_what_is_learnt_depends_on_neither_order_nor_side():
    first, second = [f"m{n % 7}" for n in range(40)], [f"m{n % 5}" for n in range(40)]
    one, other = fitted(pairs(first, second)), fitted(pairs(second[::-1], first[::-1]))
    assert one.names() == other.names() and one.identity() == other.identity()
    assert all(np.array_equal(one.state()[name], other.state()[name]) for name in one.state())
    assert np.array_equal(one(pairs(first, second)), -other(pairs(second, first)))


def test_a_pair_with_a_source_that_was_not_there_is_zero_on_both_sides():
    provider = fitted(pairs(["a"], ["b"]))
    later = pairs(["new", "a", "a+new", "a+b", "b"], ["b", "newer", "b", "a", "a"])
    assert provider(later).tolist() == [[0, 0], [0, 0], [0, 0], [-0.5, 0.5], [-1, 1]]
    assert provider(pairs([], [])).shape == (0, 2)


def test_a_source_of_another_stratum_is_not_known():
    provider = fitted(pairs(["a", "a"], ["b", "c"], ["de", "en"]), "language")
    later = pairs(["a", "a", "a"], ["b", "b", "b"], ["de", "en", "fr"])
    assert provider(later).any(axis=1).tolist() == [True, False, False]


def test_features_beside_sources_are_those_of_all_pairs():
    texts = {"prompt": ["p", "p"], "first": ["one", "other"], "second": ["three", "fo"]}
    table = pa.table(texts | {"source_model_first": ["a", "b"], "source_model_second": ["b", "a"]})
    provider = open_provider("length+source:model")
    provider.fit(table)
    later = table.set_column(3, "source_model_first", pa.array(["new", "b"]))
    length, source = provider(later)[:, 0], provider(later)[:, 1:]
    assert length.all() and source.any(axis=1).tolist() == [False, True]


def test_an_output_of_several_sources_counts_a_share_for_each():
    table = pairs(["a", "b", "a+b", "c"], ["b", "c", "c", "a+b+c"])
    provider = fitted(table)
    assert provider.names() == ("a", "b", "c")
    third = np.float32(1 / 3)
    expected = [[1, -1, 0], [0, 1, -1], [0.5, 0.5, -1], [-third, -third, 1 - third]]
    np.testing.assert_allclose(provider(table), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["a+rag", "a+", "+", "c++"])
def test_a_name_with_a_plus_is_a_name_unless_all_its_parts_are(name):
    table = pairs(["a", name], ["b", "b"])
    provider = fitted(table)
    assert provider.names() == tuple(sorted(["a", "b", name]))
    assert np.abs(provider(table)).sum(axis=1).tolist() == [2, 2]


def test_a_column_of_texts_is_no_column_of_sources(monkeypatch):
    monkeypatch.setattr(sources, "MOST_SOURCES", 3)
    with pytest.raises(InvalidLabels, match="source:model: 4 sources; expected the names of sys"):
        fitted(pairs(["a", "b"], ["c", "d"]))


def test_a_text_is_no_name_and_one_long_name_costs_itself_alone():
    with pytest.raises(InvalidLabels, match="a name of 3,000 characters in column model; expected"):
        fitted(pairs(["a", "b"], ["c", "x" * 3000]))
    with pytest.raises(InvalidLabels, match="of 257 characters in column language"):
        fitted(pairs(["a"], ["b"], ["d" * 257]), "language")
    names = [f"m{n:03}" for n in range(400)]
    state = fitted(pairs(names, ["模" * 256, *names[1:]])).state()
    assert sum(array.nbytes for array in state.values()) <= 400 * 12 + 256 * 3 + 8


def test_names_are_told_in_one_line_after_their_strata():
    table = pairs(["a: b", "x\ny"], ["c", "c"], ["de: en", "de"])
    provider = fitted(table, "language")
    assert provider.names() == ("de: c", "de: x\\ny", "de: en: a: b", "de: en: c")
    assert provider(table).any(axis=1).all()
    assert fitted(table).names() == ("a: b", "c", "x\\ny")


def states():
    good = fitted(pairs(["aé"], ["b"])).state()
    ends = good["source_ends"]
    return {
        "backwards": good | {"source_ends": ends[::-1].copy()},
        "before the start": good | {"source_ends": ends - ends[0] - 1},
        "beyond the end": good | {"source_ends": ends + 1},
        "within a character": good | {"source_ends": ends - [1, 0]},
        "twice the same": good
        | {"source": np.frombuffer(b"aa", np.uint8), "source_ends": np.array([1, 2])},
        "floats": good | {"source_ends": ends.astype(float)},
        "no names": good | {"source": ends[:0].astype(np.uint8), "source_ends": ends[:0]},
        "too long": {"source": np.full(10_000, 97, np.uint8), "source_ends": np.array([1, 10_000])},
        "a scalar": good | {"source": np.uint8(1)},
        "padded texts": {"names": np.array([["a"], ["b"]])},
    }


@pytest.mark.parametrize("damage", states())
def test_a_damaged_state_is_refused(damage):
    with pytest.raises(LabelguardError, match="expected a state of names"):
        SourceFeatures("model", None, states()[damage])


def test_missing_columns_and_names_are_named():
    with pytest.raises(InvalidLabels, match="no column source_model_first; found prompt"):
        fitted(pa.table({"prompt": ["p"]}))
    with pytest.raises(InvalidLabels, match="source_model_second: 1 of 2 pairs have no name"):
        fitted(pairs(["a", "b"], ["b", None]))
    with pytest.raises(LabelguardError, match="must be fitted"):
        SourceFeatures("model", None)(pairs(["a"], ["b"]))


@pytest.mark.parametrize("spec", ["source:", "source:a,b", "source:a,by=", "source:a,by=b,by=c"])
def test_a_specification_that_makes_no_sense_is_explained(spec):
    with pytest.raises(LabelguardError, match="expected source:COLUMN or source:COLUMN,by=COLUMN"):
        open_provider(spec)
    with pytest.raises(LabelguardError, match="expected source:COLUMN"):
        parse_feature_columns(spec)


def test_a_specification_says_what_it_needs_of_an_input():
    spec = "length+source:model,by=language+columns:a,b+source:model"
    assert parse_feature_columns(spec) == (
        FeatureColumn("model", "source"),
        FeatureColumn("language", "stratum"),
        FeatureColumn("a"),
        FeatureColumn("b"),
    )
    assert parse_feature_columns("length+minilm") == ()
