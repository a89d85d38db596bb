"""Attacks on the wall between who trains and who evaluates.

A labeler who moved from one part to the other would be judged by what was learned from them, and
whoever can move people at will could ask for the same labels in both.
"""

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from support import world
from support.copies import copy_project
from support.held_out import EVALUATION, SHAPE, TEACHER, hold_out, of_part
from support.preferences import dump, files, spent
from support.releases import make_release
from support.surveys import survey

import labelguard as lg
from labelguard.errors import LabelguardError, NobodyOfPart, PolicyError
from labelguard.keys.prf import Splits
from labelguard.project import policies
from labelguard.project.linking import add_source, link_two_ids
from labelguard.release.evaluation import Evaluation
from labelguard.release.head import FILE, Head

RAW = survey(labelers=30, per_labeler=8, items=60)
SINGLE = {name: SHAPE[name] for name in ("features", "components", "ridge")}
TRAINING: dict[str, dict[str, Any]] = {
    "rr": {"mechanism": "rr"},
    "statistic": TEACHER,
    "props": {"mechanism": "props", **SINGLE},
}
ALLOWED = ("rr:uses=1", "statistic:releases=3")


@pytest.fixture
def project(tmp_path):
    made = lg.init(tmp_path / "project", max_epsilon=1e6)
    hold_out(made, *ALLOWED)
    return made


def turn_labels(raw):
    return raw.with_columns(label=1 - pl.col("label"))


def release_traces(here, options, change):
    """All that is left of a training release, where held-out labelers may say the contrary."""
    with pytest.MonkeyPatch.context() as patch:
        world.fix(patch, world.repeatable_bytes())
        home = lg.init(here, max_epsilon=1e6)
        hold_out(home, *ALLOWED)
        if change:
            training, held_out = (of_part(home, RAW, part) for part in ("training", "held-out"))
            assert (held_out["label"] != 0.5).any()
            raw = pl.concat([training, turn_labels(held_out)])
        make_release(raw if change else RAW, project=home, **options)
        seen = {**files(home.state), **dump(home.state)}
    shutil.rmtree(here)
    return {name: value for name, value in seen.items() if "sqlite3" not in name}


@pytest.mark.quick("rr")
@pytest.mark.parametrize("name", TRAINING)
def test_no_training_release_depends_on_a_held_out_label(name, tmp_path):
    """The same coins and noise: whatever held-out labelers say, every byte stays."""
    one, two = (release_traces(tmp_path / "p", TRAINING[name], change) for change in (False, True))
    assert any(path.endswith("data.parquet") for path in one)
    assert [path for path in one.keys() | two.keys() if one.get(path) != two.get(path)] == []


def test_a_wall_with_a_hole_is_found(tmp_path, monkeypatch):
    whole = Splits.is_in

    def leaky(self, units, part):
        return np.ones(len(units), bool) if part == "training" else whole(self, units, part)

    monkeypatch.setattr(Splits, "is_in", leaky)
    one, two = (release_traces(tmp_path / "p", TEACHER, change) for change in (False, True))
    assert [path for path in one.keys() | two.keys() if one.get(path) != two.get(path)]


def read_charges(project):
    """Who was charged by each release."""
    found: dict[int, set[object]] = {}
    for row in dump(project.state)["charges"]:
        names = {value for value in row if isinstance(value, bytes)}
        [number] = [value for value in row[:2] if isinstance(value, int)][:1]
        found.setdefault(number, set()).update(names)
    return found


@pytest.mark.slow
def test_nobody_is_charged_by_both(project):
    teacher = make_release(RAW, project=project, **TEACHER)
    make_release(RAW, project=project, **TRAINING["rr"])
    make_release(RAW, project=project, **TRAINING["props"])
    # Turned labels, submitted later: the same people, and a sum of them alone.
    made = make_release(turn_labels(RAW), project=project, head=teacher.path, **EVALUATION)
    by_release = read_charges(project)
    *training, evaluation = (by_release[number] for number in sorted(by_release))
    held_out = of_part(project, RAW, "held-out")["labeler_id"].n_unique()
    assert len(evaluation) == held_out == made.card["counts"]["labelers"]
    assert all(evaluation.isdisjoint(people) for people in training)
    assert len(set.union(evaluation, *training)) == 30


def rename_input(project, raw, here):
    raw.write_csv(here / "training-only.csv")
    return str(here / "training-only.csv")


def reorder(project, raw, here):
    return raw.sample(fraction=1.0, shuffle=True, seed=3)


def one_by_one(project, raw, here):
    return raw.filter(pl.col("labeler_id") == raw["labeler_id"][0])


def other_texts(project, raw, here):
    return raw.with_columns(prompt=pl.lit("asked anew: ") + pl.col("prompt"))


def under_another_policy(project, raw, here):
    hold_out(project, *ALLOWED, name="later")
    return raw


EVASIONS = [rename_input, reorder, one_by_one, other_texts, under_another_policy]


@pytest.mark.quick("held-out-rename_input")
@pytest.mark.parametrize("evasion", EVASIONS)
@pytest.mark.parametrize("part", ["held-out", "training"])
def test_nobody_changes_parts(part, evasion, project, tmp_path):
    teacher = make_release(RAW, project=project, **TEACHER)
    make_release(RAW, project=project, head=teacher.path, **EVALUATION)
    source = evasion(project, of_part(project, RAW, part), tmp_path)
    before = spent(project)
    for options in TRAINING.values() if part == "held-out" else [EVALUATION]:
        with pytest.raises(NobodyOfPart):
            make_release(source, project=project, **options)
    assert spent(project) == before


@pytest.mark.slow
def test_nobody_changes_parts_under_another_name_of_theirs(project):
    """Ids of another source that are said to be people who were charged: their part is theirs."""
    teacher = make_release(RAW, project=project, **TEACHER)
    make_release(RAW, project=project, head=teacher.path, **EVALUATION)
    add_source("other", "known", project)
    held_out = of_part(project, RAW, "held-out")
    people = held_out["labeler_id"].unique().to_list()
    for person in people:
        link_two_ids(f"files:{person}", f"other:alias {person}", project)
    add_source("other", "linked", project)
    aliases = held_out.with_columns(
        labeler_id=pl.lit("alias ") + pl.col("labeler_id").cast(pl.String),
        prompt=pl.lit("elsewhere: ") + pl.col("prompt"),
    )
    for options in TRAINING.values():
        with pytest.raises(NobodyOfPart):
            make_release(aliases, project=project, namespace="other", **options)
    made = make_release(aliases, project=project, namespace="other", **EVALUATION)
    assert made.card["counts"]["charged"] == len(people)


def test_a_policy_cannot_draw_them_anew(project):
    make_release(RAW, project=project, **TEACHER)
    for share in (0.0, 0.1, 0.4):
        with pytest.raises(PolicyError, match=r"share of held-out units"):
            hold_out(project, *ALLOWED, name=f"share-{share:g}", share=share)
    assert [one.name for one in policies.listing(project) if one.state == "active"] == ["held"]


def alter_basis(head, **changed):
    return replace(head, basis=replace(head.basis, **changed))


def test_a_planted_head_is_refused_before_anybody_is_charged(project, tmp_path):
    head = Head.load(make_release(RAW, project=project, **TEACHER).path)
    projection, before = head.basis.projection, spent(project)
    for number, other in enumerate(
        (
            alter_basis(head, projection=np.full_like(projection, np.nan)),
            alter_basis(head, projection=np.full_like(projection, 1e300)),
            alter_basis(head, projection=np.zeros_like(projection)),
            alter_basis(head, projection=np.vstack([projection, projection])),
            alter_basis(head, metric=np.ones(7)),
            replace(head, identity="another"),
            replace(head, features="columns:elsewhere"),
        )
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / FILE).write_bytes(other.to_bytes())
        with pytest.raises(LabelguardError):
            make_release(RAW, project=project, head=directory, **EVALUATION)
        assert spent(project) == before
    noise = []
    for factor in (1.0, 1e6):  # whatever the head says of scale, the noise follows
        scaled = alter_basis(head, projection=projection * factor)
        (directory / FILE).write_bytes(scaled.to_bytes())
        made = make_release(RAW, project=project, head=directory, again=True, **EVALUATION)
        noise.append(Evaluation.load(made.path).noise)
    assert noise[1] == pytest.approx(1e6 * noise[0], rel=1e-3)


@pytest.mark.quick("label")
@pytest.mark.parametrize("order", ["label", "prompt"])
def test_what_an_evaluation_shows_does_not_follow_the_order_of_rows(project, tmp_path, order):
    """To the last bit, in a copy of the project: an export may be sorted by what people said."""
    make_release(RAW, project=project, **TEACHER)
    copy = copy_project(project.state.parent, tmp_path / "copy")
    one = make_release(RAW, project=project, head="r0001", **EVALUATION)
    other = make_release(RAW.sort(order), project=lg.find(copy), head="r0001", **EVALUATION)
    assert one.id == other.id and one.card["counts"] == other.card["counts"]
    shown, again = Evaluation.load(one.path), Evaluation.load(other.path)
    for name in ("z", "weight", "sampling"):
        assert getattr(shown, name).tobytes() == getattr(again, name).tobytes()
    assert (shown.statistic != again.statistic).all()  # each copy drew noise of its own
