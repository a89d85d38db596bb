"""Attacks on training runs: whoever stops them, copies them, plants what they go on from, or lies.

A run may depend on labels through exactly as many noised sums as were charged, each at most 2C
apart when one labeler's labels change, whatever happens on the way.
"""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from labelguard_trainer.gradient import heads, loop, mechanism
from labelguard_trainer.gradient.heads import ComparisonRecords, HeadProblem
from support import world
from support.copies import copy_project
from support.deaths import killed_in
from support.preferences import ASKED, TABLE, labels, opinions, pairs
from support.releases import make_release

import labelguard as lg
from labelguard.accounting import gaussian
from labelguard.errors import BudgetExceeded, InvalidLabels, PolicyError, ProjectError
from labelguard.mechanisms import statistic
from labelguard.mechanisms.statistic import Rows
from labelguard.project import erasure, policies
from labelguard.project.backup import backup
from labelguard.project.opening import abandon
from labelguard.project.private_map import NONCE
from labelguard.project.project import find
from labelguard.project.restore import restore
from labelguard.release.drawn import DrawnRelease
from labelguard.release.head import Head
from labelguard.report import overview
from labelguard.storage import portions

OTHERS = pairs(ASKED, opinions(len(ASKED), 99))
# Two checkpoints, and some steps after the last one.
STEPS = 25
# Everybody is in every step: a price in closed form, which nobody waits for.
ULS: dict[str, Any] = {
    "mechanism": "uls",
    "features": "length",
    "components": 1,
    "sampling_probability": 1.0,
    "steps": STEPS,
    "epsilon": 3.0,
    "delta": 1e-5,
}
ELS = ULS | {"mechanism": "els-group", "records": 4, "sampling_probability": 0.5, "steps": 4}
AUP = ULS | {"mechanism": "aup", "accept_unproven": True, "steps": 4}


@pytest.fixture
def sums(monkeypatch):
    """The exact sum of every step that noise is drawn for, in grid steps."""
    return world.note_calls(monkeypatch, statistic, "add_noise", lambda total, *_: total)


def kill_run(project, step, table=TABLE, **options):
    """A run that ends in this step, counted from where it begins."""
    with killed_in(loop, "cohort", call=step):
        make_release(table, project=project, **ULS | options)


def checkpoint(project):
    [path] = project.stages.rglob("checkpoint.npz")
    return path


def watch_runs(monkeypatch):
    """What every run is made of, as it begins."""
    return world.note_calls(monkeypatch, loop, "train", lambda *arguments: arguments[::2][:2])


# Who is in a run.


def test_who_is_exhausted_is_no_unit_and_everybody_else_is_sampled(project, monkeypatch):
    early = TABLE.filter(pc.is_in(TABLE["labeler_id"], pa.array(["worker 0", "worker 3"])))
    make_release(early, project=project, **ULS)
    seen = watch_runs(monkeypatch)
    make_release(TABLE, project=project, exhausted="drop", **ULS)
    [(problem, course)] = seen
    counts = problem._records.counts()
    assert course.units == len(counts) == 5 and (counts == 12).all()
    assert course.divisor == 5


@pytest.mark.slow
def test_everybody_is_charged_whoever_a_step_happens_to_sample(project):
    few = ULS | {"sampling_probability": 1e-3, "steps": 1}
    make_release(TABLE, project=project, **few)
    [allowance] = overview.read_budget(project.state).allowances
    assert allowance.used == 7
    with pytest.raises(BudgetExceeded):
        make_release(OTHERS, project=project, again=True, **few)


@pytest.mark.slow
def test_two_runs_and_no_third(project):
    allow = [f"uls:runs=2,q=1.0,steps={STEPS}"]
    policies.new("two", epsilon=3, delta=1e-5, allow=allow, project=project)
    policies.activate("two", project)
    first = make_release(TABLE, project=project, **ULS)
    assert make_release(TABLE, project=project, **ULS).reused
    again = make_release(TABLE, project=project, again=True, **ULS)
    assert Head.load(first.path).coefficients != pytest.approx(Head.load(again.path).coefficients)
    for table in (TABLE, OTHERS):
        with pytest.raises(BudgetExceeded):
            make_release(table, project=project, again=True, **ULS)


@pytest.mark.slow
def test_which_labels_els_uses_depends_on_neither_labels_nor_order(project, tmp_path, monkeypatch):
    """Else a labeler's first labels in a file sorted by them would be of one kind."""
    world.fix_randomness(monkeypatch)  # keys, which items are digested by
    seen = watch_runs(monkeypatch)
    for number, table in enumerate((TABLE, OTHERS)):
        order = np.argsort(labels(opinions(len(ASKED), 1))) if number else np.arange(len(ASKED))
        here = lg.init(tmp_path / str(number))
        make_release(table.take(pa.array(order)), project=here, **ELS)
    one, other = (problem._records for problem, _ in seen)
    assert len(one.index) == 7 * 4
    assert np.array_equal(one.index, other.index) and np.array_equal(one.row, other.row)


def test_a_labeler_with_all_the_labels_moves_a_sum_by_two_clip_norms_at_most(
    project, tmp_path, sums, monkeypatch
):
    seen = watch_runs(monkeypatch)
    one_person = pa.array(["worker 0"] * len(ASKED))
    for table in (TABLE, OTHERS):
        here = lg.init(tmp_path / str(len(sums)))
        table = table.set_column(
            table.schema.get_field_index("labeler_id"), "labeler_id", one_person
        )
        make_release(table, project=here, **ULS | {"steps": 1})
    (problem, course), _ = seen
    assert course.units == 1
    moved = np.linalg.norm((sums[0] - sums[1]).astype(float)) * problem._grid
    assert 0 < moved <= 2 * course.clip


# A run that is stopped.


def test_a_release_that_was_drawn_is_finished_from_its_map(project, monkeypatch, sums):
    with killed_in(DrawnRelease, "finish_and_write"):
        make_release(TABLE, project=project, **ULS)
    release = make_release(OTHERS, project=project, **ULS)
    assert not release.reused and len(sums) == STEPS, "no label was read again"
    with np.load(project.private_maps / release.id / mechanism.FILE) as kept:
        head = Head.load(release.path)
        projected = head.scale * head.basis.projection @ kept["theta"]
    assert np.array_equal(head.coefficients, projected)
    assert release.card["training"]["population"] == 7
    assert lg.load(release).height == len(ASKED)


def test_a_killed_run_that_goes_on_with_other_labels_shows_as_many_sums_as_were_charged(
    project, sums
):
    kill_run(project, 24)
    before = len(sums)
    with np.load(checkpoint(project)) as kept:
        assert int(kept["steps taken"]) == 20
    make_release(OTHERS, project=project, **ULS)
    assert len(sums) - before == STEPS - 20
    [allowance] = overview.read_budget(project.state).allowances
    assert allowance.used == 7


@pytest.mark.slow
def test_two_copies_of_a_killed_run_are_no_worse_than_two_runs(project, tmp_path, sums):
    """What both show depends on 20 sums that they have in common, and on 5 of each: 30 of 50."""
    kill_run(project, 24)
    copy = find(copy_project(project.state.parent, tmp_path / "copy"))
    common = len(sums)
    heads = []
    for here in (project, copy):
        heads.append(Head.load(make_release(TABLE, project=here, **ULS).path))
        [allowance] = overview.read_budget(here.state).allowances
        assert allowance.used == 7
    assert len(sums) - common == 2 * (STEPS - 20)
    assert (heads[0].coefficients != heads[1].coefficients).any(), "noise served two copies"


@pytest.mark.slow
def test_a_backup_has_no_checkpoint_and_what_it_had_begun_is_given_up(project, tmp_path):
    kill_run(project, 24)
    assert checkpoint(project).stat().st_mode & 0o077 == 0
    made = backup(tmp_path / "backup.tar.zst", project=project)
    back = restore(made.path, tmp_path / "back", keys=project.keys)
    assert made.unfinished == back.abandoned and len(back.abandoned) == 1
    assert not list((tmp_path / "back").rglob("checkpoint*"))
    [allowance] = overview.read_budget(project.state).allowances
    assert allowance.used == 7


@pytest.mark.slow
def test_an_abandoned_run_leaves_no_checkpoint(project):
    kill_run(project, 24)
    [release] = overview.list_releases(project.state)
    abandon(release.id, project)
    assert not list(project.stages.rglob("checkpoint*"))


# What a run goes on from.


@pytest.mark.quick("fewer steps")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data[:-1], id="cut"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: _with(data, **{"steps taken": np.array(-100)}), id="fewer steps"),
        pytest.param(lambda data: _with(data, theta=np.ones(1)), id="another state"),
        pytest.param(lambda data: _with(data, seal=np.zeros(32, np.uint8)), id="another seal"),
    ],
)
def test_a_checkpoint_that_was_altered_is_refused(change, project):
    """One that says −100 steps were taken would let a run show 100 sums that nobody paid for."""
    kill_run(project, 24)
    path = checkpoint(project)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ProjectError, match="begins the run anew"):
        make_release(TABLE, project=project, **ULS)
    path.unlink()
    make_release(TABLE, project=project, **ULS)


def _with(data, **changed):
    with np.load(io.BytesIO(data)) as found:
        return portions.pack_arrays({**found, **changed})


@pytest.mark.slow
def test_a_checkpoint_of_another_project_is_refused(project, tmp_path):
    kill_run(project, 24)
    there = lg.init(tmp_path / "other")
    kill_run(there, 24, OTHERS)
    checkpoint(project).write_bytes(checkpoint(there).read_bytes())
    with pytest.raises(ProjectError, match="another run"):
        make_release(TABLE, project=project, **ULS)


@pytest.mark.slow
def test_a_checkpoint_of_another_release_is_refused(project):
    """Its steps were charged once already, and what it shows has been seen."""
    allow = [f"uls:runs=2,q=1.0,steps={STEPS}"]
    policies.new("two", epsilon=3, delta=1e-5, allow=allow, project=project)
    policies.activate("two", project)
    kill_run(project, 24)
    earlier = checkpoint(project).read_bytes()
    make_release(TABLE, project=project, **ULS)
    kill_run(project, 14, again=True)
    checkpoint(project).write_bytes(earlier)
    with pytest.raises(ProjectError, match="another run"):
        make_release(TABLE, project=project, again=True, **ULS)


# What is asked for.


@pytest.mark.quick("run0", "run5")
@pytest.mark.parametrize(
    ("run", "message"),
    [
        (ULS | {"steps": 0}, "steps must be between 1"),
        (ULS | {"steps": 10**6}, "steps must be between 1"),
        (ULS | {"sampling_probability": 0.0}, "q must be in"),
        (ULS | {"sampling_probability": float("nan")}, "q must be in"),
        (ULS | {"weighting": "none"}, "weighting must be"),
        (ELS | {"records": 0}, "records must be between 1"),
        *(
            (AUP | {"concentration": distance}, "concentration must be")
            for distance in (0.0, -1.0, float("nan"), float("inf"), 1e300)
        ),
    ],
)
def test_a_run_out_of_range_is_refused_before_anything_is_charged(run, message, project):
    with pytest.raises(PolicyError, match=message):
        make_release(TABLE, project=project, **run)
    assert not overview.list_releases(project.state)


@pytest.mark.quick("asked0")
@pytest.mark.parametrize("asked", [{"steps": 30}, {"sampling_probability": 0.5}])
def test_a_sampling_is_not_changed_by_a_second_request(asked, project):
    few = TABLE.slice(0, 40)
    make_release(few, project=project, **ULS)
    with pytest.raises(PolicyError, match="fixed when it was made"):
        make_release(TABLE, project=project, exhausted="drop", **ULS | asked)


@pytest.mark.slow
def test_recurring_runs_are_asked_of_a_policy(project):
    with pytest.raises(PolicyError, match=r"--allow uls:runs=52,q=1\.0,steps=25"):
        make_release(TABLE, project=project, recurring="weekly", duration="1y", **ULS)


@pytest.mark.slow
def test_a_price_for_another_sampling_is_not_found_under_a_later_policy(project, monkeypatch):
    make_release(TABLE.slice(0, 40), project=project, **ULS)
    allow = ["uls:runs=1,q=1.0,steps=3"]
    policies.new("later", epsilon=2, delta=1e-6, allow=allow, project=project)
    policies.activate("later", project)
    seen = watch_runs(monkeypatch)
    make_release(TABLE, project=project, **ULS | {"steps": 3, "epsilon": 5.0, "delta": 1.1e-5})
    [(_, course)] = seen
    assert course.steps == 3
    least = gaussian.calibrate(2, 1e-6, 3)
    assert course.noise_multiplier == pytest.approx(2 * least, rel=1e-4)


# What can be seen.


def test_nothing_private_is_in_reprs_of_a_run(project, monkeypatch):
    runs = world.note_calls(
        monkeypatch, loop, "train", lambda run, _, *rest: [*map(repr, (run, *rest[:2]))]
    )
    draws = world.note_calls(
        monkeypatch,
        mechanism.GradientMechanism,
        "draw",
        lambda own, _, *rest: [*map(repr, (own, *rest[:2]))],
    )
    noted = world.note_randomness(monkeypatch)
    make_release(TABLE, project=project, **ULS)
    shown = [text for texts in runs + draws for text in texts]
    assert len(shown) == 6 and "worker" not in " ".join(shown)
    assert not any(s.hex() in text or repr(s) in text for s in noted for text in shown)


def test_progress_of_a_run_is_the_same_whatever_the_labels(tmp_path):
    reported: list[list[Any]] = []
    for number, table in enumerate((TABLE, OTHERS)):
        steps: list[tuple[str, float | None]] = []
        here = lg.init(tmp_path / str(number))
        make_release(table, project=here, progress=lambda *step, to=steps: to.append(step), **ULS)
        reported.append([step for step in steps if step[0] == "training"])
    assert reported[0] == reported[1] and 10 < len(reported[0]) <= 20


def test_nothing_random_of_a_run_is_left_in_a_project(project, monkeypatch):
    noted = world.note_randomness(monkeypatch)
    kill_run(project, 24)
    make_release(TABLE, project=project, **ULS)
    kept = [path for path in project.state.rglob("*") if path.is_file() and path.name != NONCE]
    everything = b"".join(path.read_bytes() for path in kept)
    assert len(noted) >= 2 * STEPS
    assert not any(s in everything or s.hex().encode() in everything for s in noted)


@pytest.mark.parametrize("huge", [np.inf, np.nan])
def test_features_that_are_not_finite_are_refused(huge):
    """0 · ∞ and ½ · ∞ differ: what became of them would tell a label."""
    z = np.ones((3, 2), np.float32)
    records = ComparisonRecords.of(z, Rows(np.arange(3), np.arange(3), 3))
    assert heads.choose_clip_norm(records, np.ones(3)) > 0
    z[1] = huge
    with pytest.raises(InvalidLabels, match="finite"):
        heads.choose_clip_norm(records, np.ones(3))


def test_one_huge_feature_hides_no_other_labeler():
    z = np.ones((3, 2), np.float32)
    z[0] = 1e15
    records = ComparisonRecords.of(z, Rows(np.arange(3), np.arange(3), 3))
    assert records.expected_squared_norms()[1:] == pytest.approx([0.5, 0.5])


@pytest.mark.quick("1e+30")
@pytest.mark.parametrize("theta", [1e30, 1e200, np.inf])
def test_whatever_the_parameters_have_become_labels_move_a_sum_by_two_clip_norms_at_most(theta):
    """Noise may throw parameters anywhere, and scores beyond what single precision holds."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(12, 2)).astype(np.float32)
    rows = Rows(np.arange(12), np.arange(12) // 4, 3)
    made = HeadProblem(ComparisonRecords.of(z, rows), np.ones(3), np.ones(2), 0.5)
    made.theta = np.array([theta, -theta])
    one, other = np.zeros(12), np.zeros(12)
    other[:4] = 1
    with np.errstate(all="ignore"):
        moved = [made.clipped_sum(np.arange(3), labels, 0.5) for labels in (one, other)]
    assert np.linalg.norm(moved[0] - moved[1]) <= 1.0


# Who leaves.


@pytest.mark.slow
def test_who_is_erased_is_in_no_map_of_a_run_and_a_run_under_way_is_given_up(project):
    make_release(TABLE, project=project, **ULS)
    assert erasure.preview_removal("worker 2", "erased", project).rows_remembered == 12
    left = erasure.remove_labeler("worker 2", "erased", project)
    assert left.rows_remembered == 12 and [taken.used for taken in left.releases] == [1]
    assert erasure.preview_removal("worker 2", "erased", project).rows_remembered == 0
    assert overview.verify(project.state).ok


@pytest.mark.quick("labeler")
@pytest.mark.parametrize("unit", ["labeler", "item"])
def test_a_run_under_way_is_given_up_when_somebody_is_erased(unit, project):
    kill_run(project, 24, unit=unit)
    assert len(erasure.remove_labeler("worker 2", "erased", project).given_up) == 1
    assert not list(project.stages.rglob("checkpoint*"))
