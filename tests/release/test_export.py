"""What `export` writes for other trainers, and what of noise is in it."""

import json
import shutil
from typing import get_args

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.copies import assistant, release_copy, rows_of, user
from support.lives import TABLE, first_release
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError, LedgerError, ProjectError
from labelguard.release.export import choose_unturned_rows, compute_target_probabilities
from labelguard.release.frameworks import FRAMEWORKS, FrameworkName

GAMMA = 0.2
MESSAGES = {
    "openrlhf": {"prompt": user, "chosen": assistant, "rejected": assistant},
    "axolotl": {
        "messages": user,
        "chosen": lambda text: assistant(text)[0],
        "rejected": lambda text: assistant(text)[0],
    },
    "llama-factory": {
        "prompt": user,
        "chosen": lambda text: assistant(text)[0],
        "rejected": lambda text: assistant(text)[0],
    },
}


def read_export(directory):
    [path] = directory.glob("pairs.*")
    frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ndjson(path)
    return frame.to_dicts()


def is_turned(row):
    """Whether a plain row has its sides turned around."""
    return row["chosen"].startswith("rejected")


@pytest.fixture
def copy(tmp_path):
    """Return what writes a release of some rows, and exports it; the keywords are of both."""

    def write(table, to="trl", **options):
        if not (tmp_path / "copy").exists():
            release_copy(tmp_path / "copy", table)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        return lg.export(tmp_path / "copy", tmp_path / "out", to=to, **options)

    return write


# What rows are.


def test_the_table_has_a_row_for_each_name():
    assert tuple(FRAMEWORKS) == get_args(FrameworkName)


@pytest.mark.parametrize("to", FRAMEWORKS)
@pytest.mark.parametrize("chat", [False, True])
def test_rows_are_as_the_trainer_documents_them(to, chat, copy, tmp_path):
    copy(rows_of(2, chat=chat, flip_probability=GAMMA), to)
    first = read_export(tmp_path / "out")[0]
    said = {name: f"{name} 0" for name in ("prompt", "chosen", "rejected")}
    if to == "open-instruct":
        prompt = user(said["prompt"])
        wanted = {side: prompt + assistant(said[side]) for side in ("chosen", "rejected")}
    elif to == "nemo-rl":
        sides = [assistant(said[side]) for side in ("chosen", "rejected")]
        ranked = [{"rank": rank, "completion": side} for rank, side in enumerate(sides)]
        wanted = {"context": user(said["prompt"]), "completions": ranked}
    elif chat:
        roles = MESSAGES.get(to, MESSAGES["openrlhf"])
        names = zip(roles, said.values(), strict=True)
        wanted = {name: roles[name](text) for name, text in names}
    else:
        wanted = said
    if to in ("trl", "axolotl"):
        wanted |= {"flip_probability": GAMMA}
    if to == "jsonl":
        noise = {"label_probability": None, "residual_flip_estimate": None}
        wanted |= {"item_id": "0", "flip_probability": GAMMA, **noise}
    assert first == wanted


def test_a_trainer_finds_the_file_by_what_stands_beside_it(copy, tmp_path):
    table = rows_of(3, flip_probability=GAMMA)
    result = copy(table, "llama-factory")
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text())["labelguard"]
    assert info["ranking"] is True
    assert (tmp_path / "out" / info["file_name"]).is_file()
    copy(table, "axolotl")
    section = yaml.safe_load((tmp_path / "out" / "axolotl.yaml").read_text())
    assert (section["dpo_loss_type"], section["dpo_label_smoothing"]) == (["robust"], GAMMA)
    assert (tmp_path / "out" / section["datasets"][0]["path"]).is_file()
    result = copy(table, "trl")
    assert f"--loss_type robust --label_smoothing {GAMMA}" in result.command
    readme = (tmp_path / "out" / "README.md").read_text()
    assert result.command in readme
    assert "r0001-c0de" in readme
    assert (tmp_path / "out" / "CARD.md").is_file()


# What is in them of noise.


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, 12))
def test_of_k_copies_as_many_are_as_given_as_the_probability_says(target, copies):
    p, row = np.array(target), np.arange(len(target))
    number = sum(choose_unturned_rows(p, row, copy, copies).astype(int) for copy in range(copies))
    assert (np.abs(number / copies - p) <= 1 / (2 * copies) + 1e-12).all()


def test_a_half_is_rounded_up_as_often_as_down():
    number = sum(
        choose_unturned_rows(np.full(10, 0.5), np.arange(10), copy, 3).sum() for copy in range(3)
    )
    assert number == 15


def test_every_pair_stands_once_in_each_part_of_the_file(copy, tmp_path):
    table = rows_of(4, label_probability=[0.9, 0.4, 0.5, 1.0])
    assert copy(table, copies=5).rows == 20
    rows = read_export(tmp_path / "out")
    assert [row["prompt"] for row in rows] == [f"prompt {n}" for n in range(4)] * 5
    reversed_sides = np.array([is_turned(row) for row in rows]).reshape(5, 4).sum(0)
    assert reversed_sides.tolist() == [0, 3, 2, 0]  # 5 given of 4.5, 2 of 2, 3 of 2.5, 5 of 5


def test_once_a_pair_is_written_by_its_likelier_side_and_ties_are_left_out(copy, tmp_path):
    result = copy(rows_of(3, label_probability=[0.9, 0.3, 0.5]))
    assert [is_turned(row) for row in read_export(tmp_path / "out")] == [False, True]
    assert [note for note in result.notes if "1 row of probability ½" in note]
    assert [note for note in result.notes if "--copies" in note]
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "Labels: each pair is written once, by its likelier side.\n" in readme
    assert "sides swapped" not in readme


@pytest.mark.parametrize("to", ["llama-factory", "openrlhf", "open-instruct", "nemo-rl"])
def test_flips_are_warned_of_where_no_loss_is_unbiased(to, copy):
    result = copy(rows_of(2, flip_probability=GAMMA), to)
    assert result.noise == "plain"
    assert result.rate is None
    assert f"flipped with probability {GAMMA}" in result.notes[0]
    assert "smoothing" not in result.command
    with pytest.raises(LabelguardError, match="second time"):
        copy(None, to, noise="robust")


@pytest.mark.parametrize("to", ["trl", "axolotl"])
def test_one_rate_does_not_stand_for_several(to, copy, tmp_path):
    result = copy(rows_of(2, flip_probability=[0.1, 0.2]), to)
    assert (result.noise, result.rate) == ("plain", None)
    with pytest.raises(LabelguardError, match=r"from 0\.1 to 0\.2"):
        copy(None, to, noise="robust")


def test_a_posterior_is_the_heads_probability_in_the_mean_over_flips():
    """So that a loss of posteriors is that of the true probability, if the head is right."""
    prior = np.array([0.1, 0.5, 0.8])
    flip = np.full(3, GAMMA)
    nothing = np.full(3, np.nan)
    columns = {"label_probability": nothing, "flip_probability": flip}
    first, second = (
        compute_target_probabilities(pa.table(columns), "posterior", lambda batch, p=p: p)
        for p in (prior, 1 - prior)
    )
    seen = prior * (1 - GAMMA) + (1 - prior) * GAMMA
    np.testing.assert_allclose(seen * first + (1 - seen) * (1 - second), prior, rtol=1e-12)
    alone = compute_target_probabilities(pa.table(columns), "soft", lambda batch: prior)
    np.testing.assert_array_equal(alone, prior)


def test_a_teacher_of_another_release_gives_probabilities_to_flipped_labels(tmp_path):
    first = first_release(tmp_path / "flips")
    home = lg.init(tmp_path / "teacher")
    teacher = make_release(
        TABLE, mechanism="statistic", features="length", epsilon=3, delta=1e-5, project=home
    )
    out = tmp_path / "out"
    result = lg.export("r0001", out, to="jsonl", teacher=teacher, project=first)
    assert (out / "TEACHER.md").is_file()
    assert result.noise == "columns"
    rows = read_export(out)
    assert "flip_probability" not in rows[0]
    assert all(0 < row["label_probability"] < 1 for row in rows)
    result = lg.export(
        "r0001", tmp_path / "ten", to="trl", teacher=teacher, copies=4, project=first
    )
    assert (result.noise, result.rows) == ("posterior", 4 * len(rows))
    readme = (tmp_path / "ten" / "README.md").read_text()
    assert "come of two releases" in readme and "their prices add" in readme
    once = lg.export("r0001", tmp_path / "once", to="trl", teacher=teacher, project=first)
    assert once.noise == "hard"
    assert [note for note in once.notes if "probabilities are dropped" in note]


# What is refused, and what a failure leaves.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "soft"}, "--teacher"),
        ({"copies": 3}, "--copies"),
        ({"copies": 0}, "at least 1"),
        ({"to": "torchtune"}, "trl, llama-factory"),
        ({"noise": "smoothed"}, "posterior"),
    ],
)
def test_what_does_not_fit_is_refused(options, message, copy, tmp_path):
    with pytest.raises(LabelguardError, match=message):
        copy(rows_of(2, flip_probability=GAMMA), **options)
    assert not (tmp_path / "out").exists()


def test_answers_of_several_messages_are_refused_where_only_the_last_is_read(copy):
    table = rows_of(1, chat=True, flip_probability=GAMMA)
    answers = [assistant("one") + user("and?") + assistant("two")]
    table = table.set_column(1, "chosen", pa.array(answers))
    with pytest.raises(LabelguardError, match="1 row"):
        copy(table, "llama-factory")
    copy(None, "openrlhf")


def test_a_directory_that_holds_something_is_left_alone(copy, tmp_path):
    release_copy(tmp_path / "copy", rows_of(1, flip_probability=GAMMA))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(ProjectError, match="not empty"):
        lg.export(tmp_path / "copy", tmp_path / "full", to="trl")
    (tmp_path / "empty").mkdir()
    lg.export(tmp_path / "copy", tmp_path / "empty", to="trl")


def test_an_altered_copy_is_refused(tmp_path):
    release = release_copy(tmp_path / "copy", rows_of(1, flip_probability=GAMMA))
    (release / "CARD.md").write_text("another")
    with pytest.raises(ProjectError, match="altered"):
        lg.export(release, tmp_path / "out", to="trl")


def test_a_release_that_is_not_committed_is_refused_by_its_path_too(tmp_path):
    home = first_release(tmp_path / "home")
    [path] = home.releases.iterdir()
    stray = shutil.copytree(path, path.with_name("r0002-beef"))
    with pytest.raises(LedgerError, match="not committed"):
        lg.export(stray, tmp_path / "out", to="trl")
    lg.export(path, tmp_path / "out", to="trl")
    assert lg.load("r0001", project=home).equals(lg.load(path))
    with pytest.raises(LedgerError, match="no committed release"):
        lg.load("r0002", project=home)


def test_what_is_stopped_leaves_nothing(tmp_path):
    release = release_copy(tmp_path / "copy", rows_of(1, flip_probability=GAMMA))

    def stop(step, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lg.export(release, tmp_path / "out", to="trl", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
