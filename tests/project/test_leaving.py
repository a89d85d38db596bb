"""Who leaves is refused from then on, and everybody else is as before."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codings import choose_values
from support.commands import run
from support.leaving import (
    BAD,
    MARK,
    OTHERS,
    PRICE,
    SET_ASIDE,
    THEIRS,
    WHO,
    assert_sound,
    labels_table,
    ledger_of,
    pseudonym,
    remembered,
    values,
)
from support.preferences import ASKED, LAYOUTS, files, notes, opinions, public
from support.releases import make_release
from support.scenarios import ALL, STATISTIC
from support.traces import where
from support.worlds import Run, Scenario, differences

from labelguard.errors import InvalidLabels, LedgerError
from labelguard.inputs import quarantine
from labelguard.inputs.columns import Reading
from labelguard.inputs.quarantine import DepartedLabelers
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.project import erasure, linking
from labelguard.release.privatize import plan
from labelguard.report import overview
from labelguard.report.overview import read_labeler

# ---------------------------------------------------------------- later releases


@pytest.mark.quick("retired")
@pytest.mark.parametrize("kind", ["retired", "erased"])
def test_everybody_else_keeps_their_values_at_no_charge_and_earlier_releases_stay(kind, project):
    table = labels_table()
    first = make_release(table, project=project, **PRICE)
    before, bytes_before = values(first), files(first.path)
    spent = overview.read_budget(project.state).allowances
    erasure.remove_labeler(WHO, kind, project)
    assert overview.read_budget(project.state).allowances == spent
    shown = run("budget", "journal", project=project).stdout
    assert first.id in shown.split("rewritten")[1] and "{" not in shown

    second = make_release(table, project=project, **PRICE)
    left_out, around = notes(second)
    assert left_out == f"{len(THEIRS)} rows of 1 retired or erased labeler left out"
    assert around.startswith("1 labeler left since release r0001")
    assert second.card["counts"]["charged"] == 0
    assert second.card["counts"]["rows_read"] == len(OTHERS)
    after = values(second)
    assert len(after) == len(OTHERS) and all(row in before for row in after)
    assert files(first.path) == bytes_before
    # The same as if they had never been in the file; and more of others can still come.
    assert make_release(table.take(pa.array(OTHERS)), project=project, **PRICE).reused
    more = labels_table(public(per_labeler=14, seed=4), 3)
    third = make_release(more, project=project, exhausted="drop", **PRICE)
    assert third.card["counts"]["labelers"] == 6 and third.card["counts"]["charged"] > 0
    assert_sound(project)


def test_a_bad_row_of_an_erased_labeler_is_not_set_aside_again(project):
    table = labels_table(bad=BAD)
    erasure.remove_labeler(WHO, "erased", project, never_seen=True)
    release = make_release(table, project=project, **SET_ASIDE)
    assert release.card["counts"]["set_aside"] == 2
    [kept] = project.quarantine.rglob("*.parquet")
    assert pq.read_table(kept)["input_row"].to_pylist() == sorted(i + 1 for i in BAD[2:])
    assert not where(project.state, WHO) and not where(project.state, MARK)


def test_a_file_of_nobody_else_is_refused_and_bad_rows_of_theirs_stop_nothing(project):
    table = labels_table(bad=BAD[:2])
    erasure.remove_labeler(WHO, "retired", project, never_seen=True)
    with pytest.raises(InvalidLabels, match="retired or erased"):
        make_release(table.take(pa.array(THEIRS)), project=project, **PRICE)
    assert make_release(table, project=project, **PRICE).card["counts"]["labelers"] == 6
    found = plan(table, project=project, **PRICE).preview
    assert found.reused and found.units == 6 and found.new_labels == 0


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    gone=st.sets(st.integers(0, 6), min_size=1, max_size=6),
    bad=st.sets(st.integers(0, len(ASKED) - 1), max_size=8),
    layout=st.sampled_from(sorted(LAYOUTS)),
)
def test_refused_rows_are_as_if_they_were_not_there(gone, bad, layout, tmp_path_factory):
    here = tmp_path_factory.mktemp("staged")
    keys = KeyRing.create(here / "keys")
    rows = LAYOUTS[layout](ASKED, opinions(len(ASKED), 1)).to_pylist()
    for row in bad:
        rows[row]["prompt"] = None
    table = pa.Table.from_pylist(rows)
    stays = ~np.isin(ASKED.labeler, list(gone))
    refused = keys.hash_labelers("files", [f"worker {u}" for u in sorted(gone)])
    reading = Reading({}, values=choose_values(table))
    staged = [
        stage(source, here / name, keys, StagingOptions(reading, "files", True, refused=who))
        for name, source, who in (
            ("all", table, refused),
            ("rest", table.filter(pa.array(stays)), None),
        )
    ]
    number = np.flatnonzero(stays)
    apart = ("directory", "fault", "faults", "identities", "files", "formatted", "readings")
    counts = [{k: v for k, v in vars(s).items() if k not in apart} for s in staged]
    assert counts[0].pop("refused_rows") == int((~stays).sum())
    assert counts[0].pop("refused_labelers") == len(gone)
    assert counts[1].pop("refused_rows") == counts[1].pop("refused_labelers") == 0
    moved = counts[1].pop("bad_rows")
    assert counts[0].pop("bad_rows") == {k: number[v].tolist() for k, v in moved.items()}
    assert counts[0] == counts[1]
    assert np.array_equal(staged[0].identities.labelers, staged[1].identities.labelers)
    for part in ("rows", "texts"):
        assert files(here / "all" / part) == files(here / "rest" / part)


def test_a_number_written_with_a_fraction_is_another_id(project):
    """Two spellings of one labeler are refused before (`refuse_lookalikes`), never guessed at."""
    keys = KeyRing(project.keys)
    leavers = DepartedLabelers(keys, "files", keys.hash_labelers("files", ["7", "v1"]))
    ids = pa.array(["7", "7.0", "07", None, "", "v1", "v1.0"])
    assert leavers.match_ids(ids).tolist() == [True, False, False, False, False, True, False]
    assert leavers.present_count == 2 and repr(leavers) == "DepartedLabelers(…)"
    others = DepartedLabelers(keys, "other", keys.hash_labelers("files", ["7"]))
    assert not others.match_ids(ids).any()


# ---------------------------------------------------------------- who, how often


def test_an_id_a_pseudonym_and_an_unknown_id(project):
    make_release(labels_table(), project=project, **PRICE)
    for name in (WHO, pseudonym(project)):
        found = erasure.preview_removal(name, "erased", project)
        assert found.labeler == pseudonym(project) and found.known
        assert found.rows_remembered == 12
        assert [r.used for r in found.releases] == [1] == [found.randomized_blocks]
        assert (found.epsilon, found.delta) == (3.0, 1e-5)
    assert erasure.remove_labeler(pseudonym(project), "erased", project).before is None
    for name in ("0" * 32, "somebody new"):
        found = erasure.remove_labeler(name, "retired", project, never_seen=True)
        assert not found.known and not found.releases
        assert found.labeler == pseudonym(project, name)
    others = pa.array(["somebody new"] * len(ASKED))
    newcomer = labels_table().drop(["labeler_id"]).append_column("labeler_id", others)
    with pytest.raises(InvalidLabels, match="retired or erased"):
        make_release(newcomer, project=project, **PRICE)
    with pytest.raises(InvalidLabels, match="empty"):
        erasure.remove_labeler(" ", "erased", project)


def test_an_id_that_is_the_pseudonym_of_somebody_else_is_an_id_first(project):
    table, own = labels_table(), pseudonym(project)
    at = table.column_names.index("labeler_id")
    ids = pc.if_else(pc.equal(table["labeler_id"], "worker 0"), own, table["labeler_id"])
    make_release(table.set_column(at, "labeler_id", ids), project=project, **PRICE)
    assert erasure.preview_removal(own, "erased", project).labeler == pseudonym(project, own) != own
    assert erasure.preview_removal(WHO, "erased", project).labeler == own


def test_the_budget_of_who_left_says_so_whether_they_were_charged_or_not(project):
    make_release(labels_table(), project=project, **PRICE)
    assert read_labeler(WHO, project).departure is None
    erasure.remove_labeler(WHO, "erased", project)
    erasure.remove_labeler("worker of the past", "retired", project, never_seen=True)
    erasure.remove_labeler("worker 1", "retired", project)
    erasure.remove_labeler("worker 1", "erased", project)
    gone = read_labeler("worker 1", project).departure
    assert gone and gone.retired_at and gone.retired_at <= gone.at
    assert gone.retired_at in invoke(project, "labeler", "show").stdout
    for name in (WHO, pseudonym(project)):
        found = read_labeler(name, project)
        assert found.departure in erasure.list_departures(project) and found.allowances[0].used == 1
        shown = invoke(project, "labeler", "show", name).stdout
        assert re.search(r"^spent  +ε = 3, δ = 1e-5 \(all policies", shown, re.MULTILINE)
        assert re.search(r"^\S+ +rr .*–$", shown, re.MULTILINE)
    found = read_labeler("worker of the past", project)
    assert found.pseudonym == pseudonym(project, "worker of the past") and not found.allowances
    shown = invoke(project, "labeler", "show", "worker of the past").stdout
    assert "retired on" in shown and re.search("^spent  +nothing$", shown, re.MULTILINE)
    with pytest.raises(LedgerError, match="was ever seen"):
        read_labeler("nobody", project)


def test_an_id_that_was_never_seen_is_refused_and_who_is_written_alike_is_named(project):
    make_release(labels_table(), project=project, **PRICE)
    before = files(project.state)
    for slip in (WHO.lower(), f" {WHO}"):
        refused = invoke(project, "labeler", "erase", slip, "--yes", code=1)
        assert "was ever seen" in refused.stderr
        assert f"labeler {pseudonym(project)}, whom the project knows" in refused.stderr
    for stranger in ("somebody new", "0" * 32):
        for act in (erasure.preview_removal, erasure.remove_labeler):
            with pytest.raises(LedgerError, match="--never-seen") as raised:
                act(stranger, "erased", project)
            assert "written" not in str(raised.value)
    assert dict(files(project.state).items() ^ before.items()).keys() <= {"lock"}
    erasure.remove_labeler("somebody new", "retired", project, never_seen=True)
    assert erasure.remove_labeler("somebody new", "erased", project).before == "retired"
    assert erasure.remove_labeler(WHO.lower(), "erased", project, never_seen=True).before is None


def test_leaving_again_changes_nothing_and_retired_becomes_erased_but_never_back(project):
    make_release(labels_table(bad=BAD), project=project, **SET_ASIDE)
    steps = [("retired", None), ("retired", "retired"), ("erased", "retired")]
    steps += [("erased", "erased"), ("retired", "erased")]
    kinds, entries = [], []
    for kind, before in steps:
        found = erasure.remove_labeler(WHO, kind, project)  # type: ignore[arg-type]
        assert found.before == before and found.known
        assert found.kind == ("erased" if "erased" in (kind, before) else "retired")
        assert found.rows_remembered == (10 if before is None else 0)
        kinds += [gone.kind for gone in erasure.list_departures(project)]
        entries.append(len(ledger_of(project).read_journal()))
    assert kinds == ["retired", "retired", "erased", "erased", "erased"]
    assert np.diff(entries).tolist() == [0, 1, 0, 0]  # nothing is rewritten where nothing is
    assert_sound(project)


def test_one_leaves_and_whoever_is_linked_keeps_what_they_spent(project):
    linking.link_two_ids(WHO, "worker 1", project)
    first = make_release(labels_table(), project=project, **PRICE)
    spent = read_labeler("worker 1", project.state)
    found = erasure.remove_labeler(WHO, "erased", project)
    assert found.shared and found.randomized_blocks == 1
    assert found.linked == [pseudonym(project, "worker 1")]
    assert found.rows_remembered > 0 and remembered(project) == 0
    assert any("linked ids" in line for line in found.remains)
    left = replace(spent, linked=[])
    assert read_labeler("worker 1", project.state) == left
    second = make_release(labels_table(), project=project, **PRICE | {"exhausted": "drop"})
    assert second.card["counts"]["charged"] == 0
    assert read_labeler("worker 1", project.state) == left
    assert all(row in values(first) for row in values(second))
    assert 0 < len(values(second)) < len(values(first))
    assert_sound(project)


@pytest.mark.slow
def test_where_contents_are_the_unit_rows_are_refused_and_the_rest_is_said(project):
    price = {"mechanism": "rr", "epsilon": 3.0, "delta": 1e-5, "unit": "item", "workers": 1}
    price |= {"max_labels_per_labeler": 9}  # of a content: all of them
    first = make_release(labels_table(bad=BAD), project=project, bad_rows="quarantine", **price)
    found = erasure.remove_labeler(WHO, "erased", project)
    assert found.rows_set_aside == 2 and found.rows_remembered > 0
    assert any("contents are the unit" in line for line in found.remains)
    again = make_release(labels_table(bad=BAD), project=project, bad_rows="quarantine", **price)
    assert again.card["counts"]["charged"] == 0  # the contents keep what they spent
    assert len(values(again)) == len(values(first)) - found.rows_remembered
    assert not where(project.state, WHO)


# ---------------------------------------------------------------- the commands


def invoke(project, *arguments, code=0, said=None):
    return run(*arguments, project=project, code=code, input=said)


def test_the_command_shows_what_will_happen_and_asks(project):
    make_release(labels_table(bad=BAD), project=project, **SET_ASIDE)
    before = files(project.state)
    refused = invoke(project, "labeler", "erase", WHO, said="n\n", code=1)
    assert files(project.state) == before
    assert pseudonym(project) in refused.stderr and "cannot be recalled" in refused.stdout
    done = invoke(project, "labeler", "erase", WHO, said="y\n")
    assert "1 randomized block of theirs, under" in done.stdout
    assert "repeat it in every project" in done.stdout and "statistic release" not in done.stdout
    assert not where(project.state, WHO)
    told = json.loads(invoke(project, "labeler", "erase", WHO, "--yes", "--json").stdout)
    assert told["before"] == "erased" and told["rows_set_aside"] == 0
    again = invoke(project, "labeler", "retire", WHO, "--yes")
    assert "erased, as before" in again.stdout
    listed = invoke(project, "labeler", "show")
    assert pseudonym(project) in listed.stdout and "erased" in listed.stdout
    for result in (refused, done, again, listed):  # nobody else is shown
        for other in ("worker 1", pseudonym(project, "worker 1")):
            assert other not in result.output


# Nothing of leaving depends on labels: not what is purged, shown, left out or released later.

SET_ASIDE_IN_WORLDS = f"worker {ASKED.labeler[3]}"
QUARANTINE = ("--bad-rows", "quarantine")
LEAVING = (
    *("labeler show 'worker 5'", "labeler retire 'worker 5' --yes"),
    *(
        f"labeler show '{SET_ASIDE_IN_WORLDS}' --json",
        f"labeler erase '{SET_ASIDE_IN_WORLDS}' --yes",
    ),
    *(
        f"labeler erase '{SET_ASIDE_IN_WORLDS}' --yes --json",
        f"labeler show '{SET_ASIDE_IN_WORLDS}'",
        "labeler show --json",
    ),
)


def leaving(*options):
    """A release before some leave, and one after."""
    runs = (
        Run((*QUARANTINE, *options), bad=True),
        Run((*QUARANTINE, *options), bad=True, before=LEAVING),
    )
    return Scenario(runs)


@pytest.mark.quick("coins-pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [(), STATISTIC], ids=["coins", "statistic"])
def test_nothing_of_leaving_depends_on_raw_labels(layout, options, tmp_path):
    assert differences(tmp_path, layout, leaving(*options), ALL) == []


@pytest.mark.slow
def test_a_count_of_preferences_would_be_found(tmp_path, monkeypatch):
    """Negative control: a purge that tells how its rows were labelled."""
    purge = quarantine.remove_departed_rows

    def talking(directory, leavers):
        labels = [pq.read_table(path)["label"] for path in directory.rglob("*.parquet")]
        told = sum(one.to_pylist().count(1) for one in labels)
        return quarantine.RawRows(purge(directory, leavers).rows + told)

    monkeypatch.setattr(quarantine, "remove_departed_rows", talking)
    found = differences(tmp_path, "pairs", leaving(), ALL)
    assert found and all("labeler erase" in name for name in found)
