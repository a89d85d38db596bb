"""Attacks on blocks: labels that one release draws together cost one use, and never less.

Whoever chooses the file, its order and names, when a job dies and what is asked again must not get
a second draw of a block, or a part of one, without a further charge; nor may they learn from sizes.
"""

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from scipy import stats
from scipy.special import comb
from support import world
from support.copies import copy_project
from support.deaths import killed_in
from support.preferences import Public, opinions, pairs, rankings, spent
from support.releases import make_release

import labelguard as lg
from labelguard.accounting import randomized_response as accounting
from labelguard.accounting.blocks import find_block
from labelguard.errors import BudgetExceeded, PolicyError
from labelguard.ledger.ledger import Ledger
from labelguard.project import policies
from labelguard.project.erasure import remove_labeler
from labelguard.project.linking import link_table, link_two_ids
from labelguard.project.opening import abandon
from labelguard.release import selection
from labelguard.release.mechanisms import rr
from labelguard.report import overview

PRICE: dict[str, Any] = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, "workers": 1}
COUNTS = (1, 2, 5, 9)


def give_labels(counts, first=0):
    """So many labels of each labeler, each of an item of its own."""
    labeler = np.repeat(np.arange(len(counts)), counts)
    return Public(labeler, first + np.arange(len(labeler)))


def table(asked, seed=1):
    return pairs(asked, opinions(len(asked), seed))


def both(*tables):
    return pa.concat_tables(tables)


ASKED, LATER = give_labels(COUNTS), give_labels([3] * 4, first=100)
TABLE, MORE = table(ASKED), table(LATER)


def under(project, allow, name="p", **options):
    """A policy of blocks in force, and what is asked under it."""
    policies.new(name, epsilon=3, delta=1e-5, allow=[allow], project=project, **options)
    policies.activate(name, project)
    return {"mechanism": "rr", "workers": 1, "project": project}


def answers(release):
    """What was released of each item: the text, and with which flip probability."""
    frame = lg.load(release).sort("prompt")
    return {row["prompt"]: (row["chosen"], row["flip_probability"]) for row in frame.to_dicts()}


def sizes(release):
    """How many rows of a release are from blocks of so many labels."""
    found = release.card["flip_probability"]["blocks"]
    return {one["labels"]: one["rows"] for one in found}


@pytest.fixture
def drawn(monkeypatch):
    """The sizes of all blocks that are drawn, release by release or bucket by bucket."""

    def note(labels, coins, row_keys, blocks):
        return np.bincount(blocks.of).tolist()

    return world.note_calls(monkeypatch, rr, "randomize", note)


def blocks_of(drawn):
    """The sizes noted since the last look, in order."""
    found = sorted(size for call in drawn for size in call)
    drawn.clear()
    return found


# ---------------------------------------------------------------- a second draw for nothing


def by_label(asked, ranks):
    return pairs(asked, ranks).sort_by([("label", "ascending"), ("prompt", "descending")])


def sides_exchanged(asked, ranks):
    """The same content, with the other answer first and every label turned."""
    found = pairs(asked, ranks)
    names = [n[:-2] + {"_a": "_b", "_b": "_a"}.get(n[-2:], n[-2:]) for n in found.column_names]
    turned = pl.from_arrow(found.rename_columns(names)).with_columns(1 - pl.col("label"))
    assert isinstance(turned, pl.DataFrame)
    return turned.select(found.column_names)


def twice(asked, ranks):
    return both(pairs(asked, ranks), pairs(asked, ranks))


def some_left_out(asked, ranks):
    return pairs(asked, ranks).slice(3, 9)


@pytest.mark.quick("twice", "some_left_out")
@pytest.mark.parametrize("dress", [by_label, sides_exchanged, twice, some_left_out])
def test_the_same_labels_in_another_dress_are_drawn_once(dress, project, drawn):
    """Labels have changed meanwhile: a second answer would tell which."""
    first = answers(make_release(TABLE, project=project, uses=2, **PRICE))
    assert blocks_of(drawn) == [*COUNTS]
    other = dress(ASKED, opinions(len(ASKED), 2))
    later = make_release(other, project=project, **PRICE)
    assert blocks_of(drawn) == [] and spent(project) == len(COUNTS)
    assert answers(later).items() <= first.items()


def test_other_names_of_items_cost_further_blocks_until_none_are_left(project, drawn):
    names = [[f"{letter} {i}" for i in ASKED.item] for letter in "abc"]
    named = [TABLE.append_column("item_id", pa.array(one)) for one in names]
    for number, one in enumerate(named[:2]):
        make_release(one, project=project, uses=2, **PRICE)
        assert blocks_of(drawn) == [*COUNTS] and spent(project) == (number + 1) * len(COUNTS)
    with pytest.raises(BudgetExceeded):
        make_release(named[2], project=project, **PRICE)
    assert blocks_of(drawn) == []


def test_a_block_that_died_is_drawn_whole_and_for_the_request_that_paid_it(
    project, drawn, monkeypatch
):
    """Not row by row, and not for a part of its labels, which is flipped less."""
    with killed_in(Ledger, "mark_drawn"):
        make_release(TABLE, project=project, **PRICE)
    assert blocks_of(drawn) == [*COUNTS]
    for part in (TABLE.slice(4, 1), TABLE.slice(0, 12), both(TABLE, MORE)):
        with pytest.raises(BudgetExceeded):
            make_release(part, project=project, **PRICE)
    assert blocks_of(drawn) == [] and spent(project) == len(COUNTS)
    release = make_release(TABLE, project=project, **PRICE)
    assert blocks_of(drawn) == [*COUNTS] and spent(project) == len(COUNTS)
    assert sizes(release) == {m: m for m in COUNTS}


def test_a_release_that_was_given_up_is_not_drawn_again_for_its_charge(project, drawn, monkeypatch):
    with killed_in(Ledger, "mark_drawn"):
        make_release(TABLE, project=project, uses=2, **PRICE)
    abandon(overview.list_releases(project.state)[0].id, project)
    blocks_of(drawn)
    make_release(TABLE, project=project, uses=2, **PRICE)
    assert blocks_of(drawn) == [*COUNTS] and spent(project) == 2 * len(COUNTS)
    with pytest.raises(BudgetExceeded):
        make_release(TABLE, again=True, project=project, **PRICE)


def test_again_draws_all_events_and_not_only_those_that_changed(project, drawn):
    make_release(TABLE, project=project, uses=2, **PRICE)
    blocks_of(drawn)
    changed = both(table(ASKED[:-1]), table(ASKED[-1:], seed=8))
    release = make_release(changed, again=True, project=project, **PRICE)
    assert blocks_of(drawn) == [*COUNTS] and release.card["counts"]["charged"] == len(COUNTS)
    assert sizes(release) == {m: m for m in COUNTS}
    with pytest.raises(BudgetExceeded):
        make_release(changed, again=True, project=project, **PRICE)


def test_a_label_that_comes_later_costs_a_block_of_its_own(project, drawn):
    """A block that was filled up would be two draws under one price."""
    first = answers(make_release(TABLE, project=project, uses=2, **PRICE))
    blocks_of(drawn)
    one = table(Public(np.array([3]), np.array([200])))
    release = make_release(both(TABLE, one), project=project, **PRICE)
    assert blocks_of(drawn) == [1] and release.card["counts"]["charged"] == 1
    assert answers(release).items() > first.items()  # with the law that they were drawn by
    assert sizes(release) == {1: 2, 2: 2, 5: 5, 9: 9}
    with pytest.raises(BudgetExceeded):
        make_release(both(TABLE, one, MORE), project=project, **PRICE)
    left = make_release(both(TABLE, one, MORE), project=project, exhausted="drop", **PRICE)
    assert blocks_of(drawn) == [3, 3, 3]
    assert left.card["counts"]["rows"] == len(TABLE) + 1 + 9


@pytest.mark.parametrize("allowed", [2, 3])
def test_more_labels_than_a_block_holds_are_further_blocks(allowed, project, drawn):
    """Of sizes as equal as can be; where uses run out, the rest is not released."""
    options = under(project, f"rr:uses={allowed},block=4")
    release = make_release(TABLE, exhausted="drop", **options)
    expected = {2: [1, 2, 2, 3, 4, 4], 3: [1, 2, 2, 3, 3, 3, 3]}[allowed]
    assert blocks_of(drawn) == expected
    assert spent(project) == release.card["counts"]["charged"] == len(expected)
    assert release.card["counts"]["rows"] == sum(expected)


def test_another_bound_neither_resets_nor_hides_anything(project, drawn):
    """How many labels of each are in a release may be chosen anew; what is drawn is charged."""
    many = table(give_labels([12, 12]))
    options = under(project, "rr:uses=3")
    released = make_release(many.slice(0, 10), max_labels_per_labeler=3, **options)
    first = answers(released)
    assert blocks_of(drawn) == [3] and spent(project) == 1
    same = make_release(many, max_labels_per_labeler=3, **options)
    assert blocks_of(drawn) == [3] and answers(same).items() >= first.items()  # of the other
    found = dict(first)
    for most, new, uses in ((2, [], 2), (5, [2, 2], 4), (1, [], 4), (12, [7, 7], 6)):
        release = make_release(many, max_labels_per_labeler=most, **options)
        assert blocks_of(drawn) == new and spent(project) == uses
        assert answers(release).items() >= found.items()
        found = answers(release)
    assert len(found) == 24
    with pytest.raises(BudgetExceeded):
        make_release(both(many, MORE), max_labels_per_labeler=99, **options)


def test_a_size_of_blocks_is_fixed_with_the_policy(project, drawn):
    make_release(TABLE, project=project, block=4, **PRICE)
    blocks_of(drawn)
    for size in (1, 3, 5, 16_384):
        with pytest.raises(PolicyError, match="block"):
            make_release(both(TABLE, MORE), project=project, block=size, **PRICE)
    assert blocks_of(drawn) == []


def test_a_copy_of_a_project_draws_its_own_blocks_and_charges_them(project, tmp_path, drawn):
    copy = copy_project(project.state.parent, tmp_path / "copy")
    many = table(give_labels([40] * 3))
    one = answers(make_release(many, project=project, **PRICE))
    other = answers(make_release(many, project=copy, **PRICE))
    assert blocks_of(drawn) == [40] * 6
    assert one != other and spent(lg.find(copy)) == spent(project) == 3


# ---------------------------------------------------------------- whose labels a block holds


@pytest.mark.parametrize(
    ("allow", "expected"), [("rr:uses=1", [2, 15]), ("rr:uses=3,block=6", [2, 5, 5, 5])]
)
def test_a_block_spans_linked_labelers(allow, expected, project, drawn):
    link_two_ids("worker 0", "worker 2", project)
    link_two_ids("worker 3", "worker 2", project)
    options = under(project, allow)
    release = make_release(TABLE, **options)
    assert blocks_of(drawn) == expected and sizes(release).keys() == set(expected)
    assert spent(project) == release.card["counts"]["charged"] == len(expected)
    with pytest.raises(BudgetExceeded):
        make_release(MORE.slice(0, 1), **options)


UNITS, LABELS = 1_500, 4


def of_units(unit):
    """Four labels of each of many units, all for the first answer; and which ids are linked."""
    of = np.repeat(np.arange(UNITS), LABELS)
    place = np.tile(np.arange(LABELS), UNITS)
    who = {"labeler": of, "linked": 2 * of + place % 2, "item": place}[unit]
    asked = of if unit == "item" else LABELS * of + place
    first = 2 * np.arange(UNITS)
    listed = pl.DataFrame({"labeler_id": first, "same_as": first + 1})
    rows = {"prompt": asked.astype(str), "labeler_id": who.astype(str), "label": [1] * len(of)}
    rows |= {"response_a": ["yes"] * len(of), "response_b": ["no"] * len(of)}
    return pl.DataFrame(rows), listed


@pytest.mark.parametrize("unit", ["labeler", "linked", "item"])
def test_changes_of_a_unit_have_the_law_that_is_charged(unit, project, tmp_path, monkeypatch):
    """From the file to the release; what fewer labels a block, or single coins, give is told."""
    world.fix_randomness(monkeypatch, world.repeatable_bytes())
    rows, listed = of_units(unit)
    listed.write_csv(tmp_path / "links.csv")
    if unit == "linked":
        link_table(tmp_path / "links.csv", project)
    of_policy = "item" if unit == "item" else "labeler"
    release = make_release(rows, **under(project, "rr:uses=1", unit=of_policy))
    of = pl.col("prompt").cast(pl.Int64) // (1 if unit == "item" else LABELS)
    changes = lg.load(release).group_by(of).agg((pl.col("chosen") == "no").sum())["chosen"]
    found = np.bincount(changes.to_numpy(), minlength=LABELS + 1)
    threshold = accounting.threshold(accounting.calibrate(3, 1e-5, 1))
    odds, law = (2**64 - threshold) / threshold, find_block(threshold, LABELS)
    number = np.arange(LABELS + 1)
    weight = comb(LABELS, number) * np.where(number <= law.likely_change_limit, odds, 1.0)
    assert stats.chisquare(found, UNITS * weight / weight.sum()).pvalue > 1e-6
    coins = stats.binom.pmf(number, LABELS, law.flip_probability)
    assert stats.chisquare(found, UNITS * coins / coins.sum()).pvalue < 1e-6


def test_who_was_charged_alone_is_not_linked_later(project):
    """Their blocks would be of another unit, whose uses begin anew."""
    make_release(TABLE, **under(project, "rr:uses=2"))
    with pytest.raises(PolicyError, match="before the first charge of either"):
        link_two_ids("worker 2", "worker 3", project)


def crowd(people, items, seed=1):
    """Everybody is asked about every item."""
    asked = Public(np.repeat(np.arange(people), items), np.tile(np.arange(items), people))
    return table(asked, seed)


def test_a_block_of_an_item_holds_all_its_labelers_and_outlasts_who_leaves(project, drawn):
    make_release(crowd(5, 6), project=project, unit="item", **PRICE)
    assert blocks_of(drawn) == [5] * 6 and spent(project) == 6
    remove_labeler("worker 3", "erased", project)
    later = make_release(crowd(7, 6, seed=2), project=project, **PRICE)
    assert blocks_of(drawn) == [] and spent(project) == 6
    assert sizes(later) == {5: 4 * 6}  # the law that they were drawn by, whoever has left


def test_bounded_blocks_of_items_are_charged_like_all_others(project, drawn):
    options = under(project, "rr:uses=2,block=3", unit="item")
    release = make_release(crowd(5, 6), **options)
    assert blocks_of(drawn) == [2] * 6 + [3] * 6
    assert spent(project) == release.card["counts"]["charged"] == 12


def test_a_ranking_of_which_pairs_lie_in_two_blocks_is_charged_for_both(project, drawn):
    options = under(project, "rr:uses=3,block=4")
    asked = give_labels([3, 1])
    release = make_release(rankings(asked, opinions(len(asked), 1)), **options)
    assert blocks_of(drawn) == [3, 3, 3, 3] and release.card["counts"]["charged"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["labeler", "item"])
def test_workers_draw_whole_blocks_and_the_same(unit, tmp_path, monkeypatch):
    found = []
    for workers in (1, 7):
        with monkeypatch.context() as patch:
            world.fix(patch, world.repeatable_bytes())
            project = lg.init(tmp_path / f"{workers}")
            options = under(project, "rr:uses=2,block=30", unit=unit)
            release = make_release(crowd(20, 40), **options | {"workers": workers})
            found.append((release.path / "data.parquet").read_bytes())
            assert set(sizes(release)) == {20}
    assert found[0] == found[1]


# ---------------------------------------------------------------- what sizes and orders tell


def facts(here, asked, seed, order):
    """All that a card, a preview and rows say, but for the released answers."""
    ranks = opinions(len(asked), seed)
    rows = pairs(asked, ranks)
    by_said = np.argsort(rows["label"].fill_null(2).to_numpy(), kind="stable")
    rows = rows.take(pa.array(by_said[:: (1, -1)[order]]))
    with pytest.MonkeyPatch.context() as patch:
        world.fix_randomness(patch)
        home = lg.init(here)
        shown: list[Any] = []
        release = make_release(rows, project=home, review=shown.append, **PRICE)
    told = {prompt: gamma for prompt, (_, gamma) in answers(release).items()}
    counts = release.card["counts"], release.card["flip_probability"]
    return counts, told, shown[0].label_error, shown[0].charged


def test_what_a_card_and_its_rows_say_of_blocks_is_public(tmp_path):
    """Files are sorted by label, forwards and backwards, and a third of labels are ties."""
    counts = range(1, 25)  # of labelers who share buckets
    asked = give_labels(counts)
    one, other = (facts(tmp_path / str(n), asked, 3 + n, n) for n in (0, 1))
    assert one == other
    (_, card), told, error, charged = one
    threshold = accounting.threshold(accounting.calibrate(3, 1e-5, 1))
    laws = [find_block(threshold, m) for m in counts]
    assert card["blocks"] == [
        {
            "labels": law.labels,
            "flip_probability": (1 - law.mean_sign) / 2,
            "second_moment": law.mean_sign_product,
            "rows": law.labels,
        }
        for law in laws
    ]
    gammas = np.repeat([law.flip_probability for law in laws], counts)
    expected = dict(zip(table(asked)["prompt"].to_pylist(), gammas, strict=True))
    assert told == {prompt: pytest.approx(gamma) for prompt, gamma in expected.items()}
    assert charged == len(counts) and error == pytest.approx(gammas.mean())


def test_which_labels_share_a_block_tells_nothing_of_items(project, monkeypatch):
    """Each labeler's labels are put into blocks in an order of their own, whatever the file's."""
    patterns = []
    whole = selection.assign_blocks

    def noted(unit, order, new, bound):
        found = whole(unit, order, new, bound)
        patterns.extend(tuple(found[unit == u] - found[unit == u].min()) for u in np.unique(unit))
        return found

    monkeypatch.setattr(selection, "assign_blocks", noted)
    options = under(project, "rr:uses=3,block=2")
    make_release(crowd(12, 6), **options)
    assert len(patterns) == 12 and len(set(patterns)) > 3
    assert all(sorted(one) == [0, 0, 1, 1, 2, 2] for one in patterns)
