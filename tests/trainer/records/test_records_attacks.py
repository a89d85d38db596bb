"""Attacks on an alignment of whole records: by who controls files, by who sees what comes out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from huggingface_hub import constants
from labelguard_trainer.gradient import loop
from labelguard_trainer.records import stages
from labelguard_trainer.records.people import Part
from labelguard_trainer.records.recipe import RecordsRecipe
from labelguard_trainer.records.stages import RecordStage, RewardModel, read_readable_records
from labelguard_trainer.training import models
from support import tiny_models
from support.commands import run
from support.copies import copy_project
from support.deaths import Killed
from support.whole_records import PEOPLE, RECIPE, SFT, follow, write, write_all
from transformers import AutoTokenizer, GPT2ForSequenceClassification, set_seed

import labelguard as lg
from labelguard import clock
from labelguard.errors import (
    BudgetExceeded,
    InvalidLabels,
    LabelguardError,
    PolicyError,
    ProjectError,
)
from labelguard.project import erasure, linking, opening
from labelguard.project.opening import OpenProject
from labelguard.release.model_card import LearnedRelease, find_learned_releases, front_matter
from labelguard.report import page

SECRET = "zebra crossing at midnight"
WITHOUT_SFT = {name: RECIPE[name] for name in RECIPE if name != "sft"}


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


@pytest.mark.quick("seed", "limit")
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
    done = run("align", "recipe.yaml", "-o", output, "--project", project, code=None)
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


# Attacks on an alignment of whole records by who wants more of a run than was paid for.


def killed_in_stage(stage, monkeypatch, **terms):
    """Follow the recipe until this stage (counted from 1) has taken its first step."""
    train, begun = loop.train, []

    def dies(problem, labels, run, checkpoints, watch):
        begun.append(1)
        if len(begun) < stage:
            train(problem, labels, run, checkpoints, watch)
            return

        def die(share):
            raise Killed

        every = loop.Checkpoints(checkpoints.directory, 1, checkpoints.seal)
        train(problem, labels, run, every, die)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(loop, "train", dies)
        patched.setattr(loop, "report_progress", lambda watch, done, steps: watch(done / steps))
        follow(**terms)
    [run] = Path("project/.labelguard/props").glob("r*")
    return run


def remove_stage(run, name):
    shutil.rmtree(run / name)
    (run / f"{name}.done").unlink()
    shutil.rmtree(run / f"{name}.steps")


@pytest.mark.slow
def test_a_stage_that_is_trained_anew_is_beside_no_model_of_its_first_training(
    records, monkeypatch
):
    """The reward had learned from the first `sft`, and both would have been published."""
    run = killed_in_stage(3, monkeypatch)
    remove_stage(run, "sft")
    with pytest.raises(ProjectError, match="reward is not the model that this run trained"):
        follow()
    remove_stage(run, "reward")
    with pytest.raises(ProjectError, match=r"rl\.steps.*of another run"):
        follow()
    shutil.rmtree(run / "rl.steps")
    assert not follow().reused
    assert usage() == [(1, 1, 3 * PEOPLE)]


@pytest.mark.slow
def test_a_run_that_was_given_up_is_paid_for_and_not_taken_up_again(records, monkeypatch):
    run = killed_in_stage(1, monkeypatch, recipe=SFT)
    opening.abandon(run.name, "project")
    assert not run.exists()
    with pytest.raises(BudgetExceeded):
        follow(recipe=SFT)


def test_people_are_not_joined_between_their_charges(aligned):
    """One person in two parts would have paid for one."""
    with pytest.raises(PolicyError, match="before the first charge of either"):
        linking.link_two_ids("dem3", "pre3", "project")


@pytest.mark.slow
def test_people_are_not_joined_while_a_run_is_unfinished(records, monkeypatch):
    killed_in_stage(1, monkeypatch)
    with pytest.raises(PolicyError, match="unfinished"):
        linking.link_two_ids("dem3", "pre3", "project")


def test_the_card_names_all_releases_that_a_model_learned_from(aligned):
    """Of a model that began from an earlier one, people of both releases pay."""
    write_all(same=True)
    follow("second", recipe=SFT, model="aligned/sft")
    earlier, own = find_learned_releases("second/sft", private=True)
    assert (earlier,) == find_learned_releases("aligned/sft", private=True)
    assert own.release.startswith("r0002")
    card = json.loads(Path("second/card.json").read_text())
    assert [one["release"] for one in card["learned_from"]] == [earlier.release]
    assert f"also learned from | release `{earlier.release}`" in Path("second/CARD.md").read_text()


@pytest.mark.slow
def test_a_public_reward_that_was_exchanged_meanwhile_judges_nothing(records, monkeypatch):
    shutil.copytree(Path("base").resolve(), "judge")
    rehearse = RecordStage.rehearse

    def exchanged(self, judge):
        rehearse(self, judge)
        tiny_models.gpt2(seed=7).save_pretrained("judge")

    monkeypatch.setattr(RecordStage, "rehearse", exchanged)
    with pytest.raises(LabelguardError, match="judge has changed"):
        follow(recipe=WITHOUT_SFT, reward={"public": "judge"})


def test_a_public_reward_of_a_hub_is_that_of_the_commit_that_was_identified(
    base, tmp_path, monkeypatch
):
    repository = tmp_path / "models--org--judge"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def push(commit):
        place = repository / "snapshots" / commit
        tiny_models.tokenizer().save_pretrained(place)
        set_seed(int(commit, 16) % 1000)
        settings = tiny_models.config()
        settings.num_labels = 1
        GPT2ForSequenceClassification(settings).save_pretrained(place)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        return str(place)

    asked = [5, 6], [[7, 8], [9]]
    first = push("a" * 40)
    identity = models.identity("org/judge")
    assert identity == f"org/judge@{'a' * 40}"
    push("b" * 40)
    with pytest.raises(LabelguardError, match="org/judge has changed"):
        models.check_unchanged("org/judge", identity)
    pinned = RewardModel("org/judge", base, identity)(*asked)
    assert torch.equal(pinned, RewardModel(first, base)(*asked))
    assert not torch.equal(pinned, RewardModel("org/judge", base)(*asked))


def test_the_card_says_which_public_reward_it_was(records):
    follow("out", recipe=WITHOUT_SFT, reward={"public": "base"})
    card = json.loads(Path("out/card.json").read_text())
    assert card["training"]["reward"] == {"model": "base", "identity": models.identity("base")}
    for file in ("CARD.md", "rl/TRAINING_CARD.md"):
        assert (
            f"| public reward | `base`, `{models.identity('base')}` |"
            in Path("out", file).read_text()
        )


@pytest.mark.slow
def test_a_model_that_waits_to_be_published_is_no_base(records, monkeypatch):
    """It has no card yet: another project would have named its own price alone."""
    run = killed_in_stage(2, monkeypatch)
    lg.init("other")
    with pytest.raises(LabelguardError, match="private until its run is finished"):
        follow(project="other", recipe=SFT, model=str(run / "sft"))


def test_nobody_is_held_out_of_whole_records(records):
    """They would have been trained on: no file tells who they are."""
    terms = {"unit": "user", "allow": ["records:stages=1,q=0.5,steps=2"], "held_out": 0.2}
    with pytest.raises(PolicyError, match="leave --held-out out"):
        lg.policies.new("half", epsilon=4, delta=1e-5, project="project", **terms)


# Attacks on an alignment of whole records by what somebody writes, which nothing may show.

NO_TEXT = b"\xff\xfe \xed\xa0\x80"


def put(text, part, column):
    """Write bytes in place of the first text of a column."""
    table = pq.read_table(f"{part}.parquet")
    values = table[column].combine_chunks().cast(pa.binary()).to_pylist()
    values[0] = text
    data = pa.array(values, pa.binary())
    texts = pa.StringArray.from_buffers(len(data), *data.buffers()[1:])
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, column, texts), f"{part}.parquet")


def widened(name, **changes):
    """Copy the base model to a directory of that name, with other tokens or settings."""
    shutil.copytree(Path("base").resolve(), name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.add_tokens(changes.pop("tokens", []))
    for key, value in changes.items():
        setattr(tokenizer, key, value)
    tokenizer.save_pretrained(name)
    return name


def make_stage(name, size):
    """A stage of the recipe, whose batches have this size."""
    Path("recipe.yaml").write_text(str(RECIPE))
    recipe = RecordsRecipe.read(Path("recipe.yaml"))
    return RecordStage.of(name, "base", {**recipe.decisive(name)}, 8, size)


def test_bytes_that_are_no_text_are_a_null_record_and_no_error(records):
    """Parquet does not check UTF-8: `UnicodeDecodeError` told that somebody was there."""
    put(NO_TEXT, "demonstrations", "response")
    put(NO_TEXT, "preferences", "rejected")
    put(NO_TEXT, "prompts", "prompt")
    assert not follow().reused


def texts(*values):
    return pa.array(values, pa.large_string())


@pytest.mark.parametrize("raised", [ValueError, MemoryError, type("Panic", (BaseException,), {})])
def test_a_record_at_which_a_tokenizer_fails_is_null_and_moves_no_other(raised):
    def read(columns):
        if "zebra" in columns[0].to_pylist():
            raise raised("zebra")
        return pa.table({"size": [len(text) for text in columns[0].to_pylist()]})

    table, readable = read_readable_records(read, [texts("a", "zebra", "ccc")])
    assert table["size"].to_pylist() == [1, 0, 3]
    assert readable.tolist() == [True, False, True]


def test_a_token_that_the_model_has_no_row_for_is_told_of_before_anybody_pays(records):
    """Whoever wrote it ended training by an IndexError, after everybody had paid."""
    put(b"a <zebra> here", "demonstrations", "response")
    with pytest.raises(LabelguardError, match="tokens beyond the 258 of its model"):
        follow(recipe=SFT, model=widened("wide", tokens=["<zebra>"]))
    assert usage() == []


def test_a_public_reward_that_cannot_judge_is_told_of_before_anybody_pays(records):
    for reward, told in (
        (widened("wide", tokens=["<zebra>"]), "tokens beyond the 258"),
        ("nowhere", "nowhere"),
    ):
        with pytest.raises(LabelguardError, match=told):
            follow(recipe=WITHOUT_SFT, reward={"public": reward})
    assert usage() == []


def test_a_long_text_is_told_by_no_warning(records, capfd):
    put(b"zebra " * 1000, "demonstrations", "response")
    follow(recipe=SFT, model=widened("short", model_max_length=16))
    told = capfd.readouterr()
    assert told.out + told.err == ""


@pytest.mark.parametrize("name", ["sft", "reward", "rl"])
def test_as_much_memory_as_anybody_may_take_is_tried_out_before(records, monkeypatch, name):
    """Memory that does not suffice for somebody's records would tell of them by an error."""
    stage = make_stage(name, 1)
    shapes = []
    forward = torch.nn.Embedding.forward

    def watched(self, ids):
        shapes.append(tuple(ids.shape))
        return forward(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", watched)
    stage.rehearse()
    rehearsed = set(shapes)
    shapes.clear()
    some = [texts(*("zebra " * 5000,) * 8)] * 3
    problem = stage.problem(
        some, np.zeros(8, np.intp), np.ones(8, bool), 1, lambda p, r: torch.zeros(len(r))
    )
    problem.bound_gradient_norms(np.arange(1), np.ones(8))
    prompts = {shape for shape in shapes if name != "rl" or shape[1] > 250}
    assert prompts and prompts <= rehearsed


def test_of_a_text_no_more_is_read_than_a_stage_could_take(records):
    for name in ("sft", "reward", "rl"):
        stage = make_stage(name, 1)
        tokenizer = AutoTokenizer.from_pretrained("base")
        table = stage._tokenize_records(tokenizer, [texts("x" * 1_000_000)] * 3)
        assert table.nbytes < 8 * 3 * 64 * stage.config["max_length"]


def problem_of(name, written, reward=None):
    """A stage's problem on two records of each of three people; `written` is what the second has.

    Coins are the same each time.
    """
    stage = make_stage(name, 2)
    values = ["tea is good", "rain", written, written, "no, never", "salt and bread"]
    columns = [texts(*(value or "" for value in values)) for _ in range(3)]
    columns[1] = texts(*(f"{value or ''}!" for value in values))
    present = np.array([value is not None for value in values])
    judge = reward or (lambda prompt, responses: torch.arange(float(len(responses))))
    unit = np.array([0, 0, 1, 1, 2, 2])
    problem = stage.problem(columns, unit, present, 3, judge)
    if name == "rl":
        problem._make_secret = lambda: bytes(32)
    return problem


def summed(problem, *people):
    return problem.clipped_sum(np.array(people), np.ones(6), 0.1)


@pytest.mark.quick("tea-reward", "-sft", "tea-rl")
@pytest.mark.parametrize("name", ["sft", "reward", "rl"])
@pytest.mark.parametrize("written", ["x" * 4000, "", "\x00<pad><eos>", "tea"])
def test_what_others_add_is_the_same_to_the_last_bit_whoever_is_beside_them(records, name, written):
    null, there = problem_of(name, None), problem_of(name, written)
    others = summed(null, 0, 2)
    assert others.abs().sum() > 0
    assert torch.equal(summed(null, 0, 1, 2), others), "a null person adds zero"
    own = summed(there, 1)
    assert torch.equal(summed(there, 0, 1, 2) - own, summed(there, 0, 2))
    assert torch.equal(summed(there, 0, 2), others)
    assert float(own.norm()) <= 0.1


@pytest.mark.parametrize("worth", [float("nan"), float("inf"), 1e30])
def test_a_reward_that_is_no_number_poisons_no_sum(records, worth):
    def reward(prompt, responses):
        mine = bytes(prompt[:5]) == b"zebra"[:5] or 89 in prompt
        return torch.arange(float(len(responses))) * (worth if mine else 1.0)

    there, null = problem_of("rl", "zebra", reward), problem_of("rl", None, reward)
    total = summed(there, 0, 1, 2)
    assert bool(total.isfinite().all())
    assert float((total - summed(null, 0, 2)).norm()) <= 0.1 * (1 + 1e-12)
