"""Attacks on an alignment of whole records: by who controls files, by who sees what comes out."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from labelguard_trainer.gradient import loop
from labelguard_trainer.records import stages
from labelguard_trainer.records.people import Part
from support import tiny_models
from support.copies import copy_project
from support.whole_records import PEOPLE, RECIPE, SFT, follow, write

import labelguard as lg
from labelguard import clock
from labelguard.cli.main import main
from labelguard.errors import InvalidLabels, LabelguardError, PolicyError
from labelguard.project import erasure, linking
from labelguard.project.opening import OpenProject
from labelguard.release.model_card import LearnedRelease, front_matter
from labelguard.report import page

SECRET = "zebra crossing at midnight"


def usage():
    """(capacity, used, number of people) of the ledger."""
    return OpenProject.open("project").ledger.releases.usage().get("records", [])


def rename(part, number, name):
    """Write another id in place of that of one person."""
    table = pq.read_table(f"{part}.parquet")
    ids = table["user_id"].to_pylist()
    ids = [name if one == f"{part[:3]}{number}" else one for one in ids]
    pq.write_table(table.set_column(0, "user_id", pa.array(ids)), f"{part}.parquet")


# Who wants a second look at people for the price of one.


@pytest.mark.parametrize("spelled", ["DEM3", " dem3", "dem3 ", "ｄem3", "dem\u200b3"])
def test_a_person_spelled_in_two_ways_is_not_two_people(records, spelled):
    rename("preferences", "3", spelled)
    with pytest.raises(InvalidLabels, match="written"):
        follow()
    assert usage() == []


def test_a_person_of_two_ids_that_were_linked_is_in_two_parts(records):
    linking.link_two_ids("dem3", "pre3", "project")
    with pytest.raises(PolicyError, match="1 user of 35 would be in more stages"):
        follow()
    assert usage() == []


def test_other_contents_under_the_same_ids_are_the_same_request(aligned):
    """Under another name, in another order, with other words: everybody was asked once."""
    before = Path("aligned/sft/model.safetensors").read_bytes()
    table = pq.read_table("demonstrations.parquet")
    words = pa.array([SECRET] * len(table))
    other = table.set_column(2, "response", words).take(list(range(len(table)))[::-1])
    pq.write_table(other, "renamed.parquet")
    result = follow("again", sft={"demonstrations": "renamed.parquet"})
    assert result.reused
    assert Path("again/sft/model.safetensors").read_bytes() == before


@pytest.mark.parametrize("change", ["seed", "more", "fewer", "limit"])
def test_another_run_over_the_same_people_is_another_stage_and_refused(aligned, change):
    terms = {}
    if change == "seed":
        terms["sft"] = {"demonstrations": "demonstrations.parquet", "config": {"seed": 3}}
    if change == "limit":
        terms["records_a_step"] = 1
    if change in ("more", "fewer"):
        table = pq.read_table("prompts.parquet")
        table = pa.concat_tables([table, table.slice(0, 1)]) if change == "more" else table.slice(1)
        pq.write_table(table, "prompts.parquet")
    with pytest.raises(LabelguardError, match="have no stage left"):
        follow(**terms)
    assert usage() == [(1, 1, 3 * PEOPLE)]


def test_another_source_of_ids_is_not_made_up_by_an_edit(aligned):
    config = Path("project/.labelguard/labelguard.toml")
    config.write_text(config.read_text().replace('source = "files"', 'source = "other"'))
    with pytest.raises(PolicyError, match="not among this project's"):
        follow()


def test_who_left_the_project_teaches_nothing_any_more(records):
    erasure.remove_labeler("dem3", "erased", "project", never_seen=True)
    with pytest.raises(InvalidLabels, match="1 user of these files left"):
        follow()


def test_a_base_model_that_knows_private_data_is_no_public_one(records):
    for name, learned, tags, told in (
        ("raw", (), "\n- non-private", "trained on raw labels"),
        (
            "other",
            (LearnedRelease("r0009-x", "9" * 64, 3.0, 1e-6, "labeler", "replace_labels"),),
            "",
            "not of this",
        ),
    ):
        shutil.copytree(Path("base").resolve(), name)
        matter = front_matter(learned, "base")
        Path(name, "TRAINING_CARD.md").write_text(f"---\ntags:\n- labelguard{tags}\n{matter}---\n")
        with pytest.raises(LabelguardError, match=told):
            follow(model=name)
    assert usage() == []


def test_no_text_is_read_before_everybody_is_charged(records, monkeypatch):
    read = Part.read_texts
    charged: list[object] = []
    monkeypatch.setattr(
        Part, "read_texts", lambda *given: (charged.append(usage()), read(*given))[1]
    )
    follow(recipe=SFT)
    assert charged == [[(1, 1, PEOPLE)]]


# Who sees everything that is not noised.


def told(project, monkeypatch):
    """All that following the recipe shows: output, card, names and sizes of files, the ledger."""
    monkeypatch.setattr(clock, "now", lambda: "2026-01-01T00:00:00Z")
    Path("recipe.yaml").write_text(json.dumps(RECIPE))
    output = f"out-{project}"
    done = CliRunner().invoke(main, ["align", "recipe.yaml", "-o", output, "--project", project])
    files = {
        path.relative_to(output).as_posix(): path.stat().st_size
        for path in Path(output).rglob("*")
        if path.is_file()
    }
    cards = [Path(output, name).read_bytes() for name in ("card.json", "CARD.md")]
    ledger = OpenProject.open(project).ledger
    journal = []
    for entry in ledger.read_journal():
        body = json.loads(entry.body)
        for name in ("files", "map"):  # digests of noised models, and of what has random bytes
            body.pop(name, None)
        journal.append((entry.kind, body))
    streams = [text.replace(output, "out") for text in (done.stdout, done.stderr)]
    return done.exit_code, streams, files, cards, ledger.releases.usage(), journal


@pytest.mark.slow
def test_nothing_but_the_models_depends_on_what_people_wrote(records, monkeypatch):
    """Null, empty, huge, of other scripts, controls: all else is equal byte by byte."""
    copy_project("project", "twin")
    first = told("project", monkeypatch)
    texts = [None, "", "x" * 3000, "\x1b[2J\x00", "字" * 90, "<eos><pad>", " ", SECRET]
    for part, names in (
        ("demonstrations", ("prompt", "response")),
        ("preferences", ("prompt", "chosen", "rejected")),
        ("prompts", ("prompt",)),
    ):
        who = pq.read_table(f"{part}.parquet")["user_id"].to_pylist()
        columns = {
            name: pa.array([texts[(row + place) % len(texts)] for row in range(len(who))])
            for place, name in enumerate(names)
        }
        write(part, who, **columns)
    second = told("twin", monkeypatch)
    assert first[0] == 0
    for one, other in zip(first, second, strict=True):
        assert one == other


@pytest.mark.slow
def test_words_are_on_disk_nowhere_but_in_the_files_and_in_no_message(records, monkeypatch):
    """While it trains, after it was killed, and where a library raises what has a text in it."""
    table = pq.read_table("demonstrations.parquet")
    words = pa.array([SECRET] * len(table))
    pq.write_table(table.set_column(2, "response", words), "demonstrations.parquet")
    train = loop.train

    def fails(problem, labels, run, checkpoints, watch):
        train(
            problem,
            labels,
            run,
            loop.Checkpoints(checkpoints.directory, 1, checkpoints.seal),
            watch,
        )
        raise ValueError(f"cannot read {SECRET}")

    monkeypatch.setattr(loop, "train", fails)
    with pytest.raises(LabelguardError) as raised:
        follow(recipe=SFT)
    assert SECRET not in str(raised.value) and raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    kept = list(Path("project/.labelguard").rglob("*"))
    assert any(path.name == "checkpoint.npz" for path in kept)
    held = [path for path in kept if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert held == []


@pytest.mark.parametrize("kind", ["jsonl", "chats"])
def test_files_whose_rows_could_be_bad_by_what_they_say_are_not_read(records, kind):
    if kind == "jsonl":
        Path("demonstrations.parquet").write_text(
            '{"user_id": "a", "prompt": 7, "response": "b"}\n'
        )
    else:
        chats = tiny_models.planted(4, chat=True)
        write("demonstrations", list("abcd"), prompt=chats["prompt"], response=chats["chosen"])
    with pytest.raises(InvalidLabels, match=r"demonstrations\.parquet"):
        follow(recipe=SFT)


def test_a_report_of_label_releases_is_not_written_of_records(aligned):
    with pytest.raises(PolicyError, match="whole records"):
        page.report(project="project")
    assert lg.policies.show(project="project").quote.adjacency == "zero_out"
    assert stages.RewardModel("aligned/reward", "base")([5], [[6], [7]]).shape == (2,)
