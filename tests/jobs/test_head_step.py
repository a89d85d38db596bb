"""The step `head`: what it learns from which release, and that a kill leaves a model or none."""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.deaths import killed_in
from support.preferences import STATISTIC
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.jobs import steps
from labelguard.jobs.steps import HeadStep, TrainingTask, open_step
from labelguard.release.head import Head
from labelguard.release.pairs_file import compute_item_keys, hold_out, read_preference_pairs
from labelguard.text import no_progress

WEEKS = 3


@pytest.fixture(scope="module")
def labels():
    """Simulated labels; every pair is labeled once."""
    table = lg.simulate(labelers=60, labels=1800, items=1800, tie_rate=0.0)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame.unique(["prompt", "response_a", "response_b"], maintain_order=True).to_arrow()


@pytest.fixture(scope="module")
def flipped(labels, tmp_path_factory):
    """Labels by randomized response."""
    project = lg.init(tmp_path_factory.mktemp("flipped"), max_epsilon=100)
    yield make_release(
        labels, project=project, mechanism="rr", epsilon=60, max_labels_per_labeler=64, block=1
    )


@pytest.fixture(scope="module")
def weekly(labels, tmp_path_factory):
    """A statistic released in three windows."""
    project = lg.init(tmp_path_factory.mktemp("weekly"))
    options = STATISTIC | {"epsilon": 8, "delta": 1e-5, "uses": WEEKS, "ridge": 3.0}
    ends = [labels.num_rows * (week + 1) // WEEKS for week in range(WEEKS)]
    return project, [make_release(labels.slice(0, end), project=project, **options) for end in ends]


def _task(release, output):
    project = lg.find(release.path.parents[2])
    return TrainingTask(release.path, project, output, no_progress)


def _step(**options):
    step = open_step("head", options, Path())
    assert isinstance(step, HeadStep)
    step.check("rr", None)
    return step


def test_a_head_learns_from_flipped_labels_what_people_prefer(flipped, labels, tmp_path):
    step = _step(features="length+text", holdout=0.2)
    learned = step.train(_task(flipped, tmp_path / "model"))
    file = flipped.path / "data.parquet"
    out = hold_out(compute_item_keys(file), 0.2)
    assert learned.facts["rows_held_out"] == out.sum() and learned.facts["rows"] == (~out).sum()
    fresh = lg.simulate(labelers=40, labels=800, items=800, seed=7, tie_rate=0)
    first = np.asarray(fresh["label"]) == 1
    sides = [np.asarray(fresh[name]) for name in ("response_a", "response_b")]
    pairs = pa.table(
        {
            "prompt": fresh["prompt"],
            "chosen": np.where(first, *sides),
            "rejected": np.where(first, *sides[::-1]),
        }
    )
    margins = step.margins(tmp_path / "model", pairs)
    assert (margins > 0).mean() > 0.6
    turned = pairs.rename_columns(["prompt", "rejected", "chosen"])
    assert np.allclose(step.margins(tmp_path / "model", turned), -margins, atol=1e-5)


def test_what_is_held_out_teaches_nothing(flipped, tmp_path):
    """The same head, to the last bit, whatever the held-out labels say."""
    step = _step(features="length", holdout=0.3)
    step.train(_task(flipped, tmp_path / "one"))
    other = tmp_path / "other"
    other.mkdir()
    file = flipped.path / "data.parquet"
    rows, out = pl.read_parquet(file), hold_out(compute_item_keys(file), 0.3)
    turned = pl.Series(out)
    rows.with_columns(
        chosen=pl.when(turned).then("rejected").otherwise("chosen"),
        rejected=pl.when(turned).then("chosen").otherwise("rejected"),
    ).write_parquet(other / "data.parquet")
    (other / "card.json").write_bytes((flipped.path / "card.json").read_bytes())
    task = _task(flipped, tmp_path / "two")
    step.train(TrainingTask(other, task.project, task.output, no_progress))
    one, two = (Head.load(tmp_path / name) for name in ("one", "two"))
    assert np.array_equal(one.coefficients, two.coefficients)
    rows.with_columns(chosen="rejected", rejected="chosen").write_parquet(other / "data.parquet")
    step.train(TrainingTask(other, task.project, tmp_path / "three", no_progress))
    assert not np.array_equal(one.coefficients, Head.load(tmp_path / "three").coefficients)


@pytest.mark.slow
def test_a_statistic_has_its_head_and_the_newest_windows_make_another(weekly, tmp_path):
    _, releases = weekly
    last = releases[-1]
    assert last.card["statistic"]["windows"] == WEEKS
    learned = _step().train(_task(last, tmp_path / "all"))
    assert learned.facts["windows"] == WEEKS
    released = Head.load(last.path)
    assert np.allclose(Head.load(tmp_path / "all").coefficients, released.coefficients)

    _step(windows=1).train(_task(last, tmp_path / "newest"))
    newest, before = Head.load(tmp_path / "newest"), Head.load(releases[-2].path)
    assert newest.statistic is not None and before.statistic is not None
    assert released.statistic is not None
    assert np.allclose(newest.statistic, released.statistic - before.statistic)
    assert newest.noise < released.noise
    _step(windows=WEEKS + 5).train(_task(last, tmp_path / "more"))
    assert np.allclose(Head.load(tmp_path / "more").coefficients, released.coefficients)
    early = _step().train(_task(releases[0], tmp_path / "early"))
    assert early.facts["windows"] == 1  # it knows no later one


def test_a_kill_leaves_a_model_or_none(flipped, tmp_path):
    step, task = _step(features="length"), _task(flipped, tmp_path / "model")
    with killed_in(steps, "publish_directory"):
        step.train(task)
    assert not task.output.exists()
    learned = step.train(task)
    made = (task.output / "head.npz").stat().st_mtime_ns
    assert step.train(task) == learned
    assert (task.output / "head.npz").stat().st_mtime_ns == made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"windows": 0}, "windows must be at least 1"),
        ({"holdout": 1.0}, r"holdout must be in \[0, 1\)"),
        ({"ridge": "3"}, r"train\.options\.ridge"),
        ({"componnets": 3}, r"train\.options\.componnets"),
        ({"features": "lenght"}, "lenght"),
        ({"features": "hf:/nowhere/at-all"}, "no model directory|encoders"),
        ({"features": "length+columns:a"}, "not these columns"),
    ],
)
def test_options_that_cannot_be_are_named(options, said):
    with pytest.raises(LabelguardError, match=said):
        open_step("head", options, Path()).check("rr", None)


def test_a_step_that_is_not_installed_is_named():
    with pytest.raises(LabelguardError, match=r"no 'haed'; available: dpo, head, reward"):
        open_step("haed", {}, Path())


def test_labels_without_flips_or_head_teach_none(flipped, tmp_path):
    other = tmp_path / "release"
    other.mkdir()
    card = (flipped.path / "card.json").read_text().replace('"forward"', '"plain"')
    (other / "card.json").write_text(card)
    task = _task(flipped, tmp_path / "model")
    with pytest.raises(LabelguardError, match="no head can be learned"):
        _step().train(TrainingTask(other, task.project, task.output, no_progress))
    assert (
        read_preference_pairs(flipped.path / "data.parquet").num_rows
        == flipped.card["counts"]["rows"]
    )
