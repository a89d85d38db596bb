"""Attack: jobs whose files, directories and links lead elsewhere, and labels looked for in all that
jobs write, print and tell.

Hypotheses: a name leads out of the project's directory; a link in the place of models, of the model
in use, of a state or a lock lets a job write, remove or lock files elsewhere; a state that somebody
else wrote decides what is promoted; what goes wrong says what is in a file; a label can be told
from when a model is promoted.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import run
from support.job_projects import Desk, desk, labels
from support.preferences import files

from labelguard.errors import LabelguardError, ProjectError
from labelguard.jobs import releases
from labelguard.jobs.run import retrain


@pytest.fixture
def small(tmp_path):
    return desk(tmp_path / "desk")


@pytest.fixture
def elsewhere(tmp_path):
    """Files of others, which look like models."""
    path = tmp_path / "elsewhere"
    for name in ("0001", "0002"):
        (path / name).mkdir(parents=True)
        (path / name / "head.npz").write_text("precious")
    return path


def is_untouched(elsewhere):
    return files(elsewhere) == {"0001/head.npz": b"precious", "0002/head.npz": b"precious"}


@pytest.mark.quick("../x", "x" * 65)
@pytest.mark.parametrize("name", ["../x", "/tmp/x", "..", ".", "a/b", "a\nb", "x" * 65, "-x", "ä"])
def test_a_name_leads_nowhere(name, small):
    small.asks(name=name)
    with pytest.raises(LabelguardError, match="name: "):
        retrain(small.job)
    assert not small.state.parent.exists()
    small.asks()
    with pytest.raises(LabelguardError, match="name: "):  # nor does that of its file
        retrain(small.job.rename(small.path / "..yaml"))


Plant = Callable[[Desk, Path], object]


def link_of_models(small, elsewhere):
    small.models.symlink_to(elsewhere)


def models_of_others(small, elsewhere):
    small.asks(promote={"directory": str(elsewhere)})


def directory_in_use(small, elsewhere):
    (small.models / "current").mkdir(parents=True)
    (small.models / "current" / "mine").touch()


def link_in_use(target):
    def plant(small, elsewhere):
        (small.models / "current").unlink()
        (small.models / "current").symlink_to(target.format(elsewhere=elsewhere))

    return plant


def link_of_a_model(small, elsewhere):
    (small.models / "0001").rename(small.path / "away")
    (small.models / "0001").symlink_to(elsewhere / "0001")


def registered_elsewhere(small, elsewhere):
    path = small.models / "registry.json"
    found = json.loads(path.read_text())
    found["models"][0]["model"] = "../../elsewhere/0001"
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("runs", "plant", "said"),
    [
        (0, link_of_models, "is a link"),
        (0, models_of_others, "does not list"),
        (0, directory_in_use, "move it away"),
        (1, link_in_use("{elsewhere}/0001"), "does not point to a model"),
        *(
            pytest.param(
                1, link_in_use(target), "does not point to a model", marks=pytest.mark.slow
            )
            for target in ("../elsewhere/0001", "0009", "..", ".")
        ),
        (1, link_of_a_model, "does not point to a model"),
        (1, registered_elsewhere, "registry"),
    ],
)
def test_what_is_planted_among_models_is_refused_and_nothing_elsewhere_changes(
    runs: int, plant: Plant, said: str, small: Desk, elsewhere: Path
) -> None:
    for batch in range(runs):
        retrain(small.job)
        small.label(batch + 2)
    plant(small, elsewhere)
    before = files(small.models)
    with pytest.raises(LabelguardError, match=said):
        retrain(small.job)
    assert is_untouched(elsewhere) and small.charged() == 30 * runs
    assert files(small.models) == before


@pytest.mark.quick(".lock")
@pytest.mark.parametrize("name", [".lock", "registry.json"])
def test_links_among_the_models_are_not_followed(name, small, tmp_path):
    small.models.mkdir()
    (small.models / name).symlink_to(tmp_path / "victim")
    with pytest.raises((LabelguardError, OSError)):
        retrain(small.job)
    assert not (tmp_path / "victim").exists()


def test_a_candidate_behind_a_link_is_removed_and_what_it_leads_to_is_not(small, elsewhere):
    small.models.mkdir()
    (small.models / ".candidate-0").symlink_to(elsewhere)
    assert retrain(small.job).outcome == "promoted"
    assert is_untouched(elsewhere)


@pytest.mark.quick("run.json")
@pytest.mark.parametrize("name", ["run.json", "lock", "history.jsonl", ""])
def test_links_in_the_state_of_a_job_are_not_followed(name, small, tmp_path):
    if name:
        small.state.mkdir(parents=True, mode=0o700)
        small.state.parent.chmod(0o700)
        (small.state / name).symlink_to(tmp_path / "victim")
    else:
        (tmp_path / "state").mkdir()
        small.state.parent.mkdir(mode=0o700)
        small.state.symlink_to(tmp_path / "state")
    with pytest.raises((ProjectError, OSError)):
        retrain(small.job)
    assert not (tmp_path / "victim").exists() and not [*(tmp_path / "state").glob("*")]


def test_a_state_that_others_can_write_is_not_believed(small):
    retrain(small.job)
    (small.state / "run.json").write_text("{}")
    (small.state / "run.json").chmod(0o666)
    with pytest.raises(ProjectError, match="by others"):
        retrain(small.job)
    small.state.chmod(0o777)
    with pytest.raises(ProjectError, match="by others"):
        retrain(small.job)


@pytest.mark.quick("", '"x"')
@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "\x00", '{"run": 1}'])
def test_a_damaged_state_is_said_in_one_line(text, small):
    retrain(small.job)
    (small.state / "run.json").write_text(text)
    (small.state / "run.json").chmod(0o600)
    result = run("retrain", small.job, code=1)
    assert "cannot be read" in result.stderr
    assert "Traceback" not in result.output


def everything(small, said):
    """What a job wrote where somebody may look, and what it said."""
    own = [small.state, small.models]
    texts = [data for path in own for data in files(path).values()]
    return said + b"\n".join(texts).decode(errors="replace")


def test_no_label_and_no_labeler_is_in_what_a_job_writes_and_says(small):
    """Labels are words that occur nowhere else; one file has a row that cannot be read."""
    (small.path / ".labelguard" / "labelguard.toml").write_text("format = 1\n")
    rows = [
        {**row, "label": {1: "sesame", 0: "poppy"}.get(row["label"], "sesame"), "tie": False}
        for row in labels(1).to_pylist()
    ]
    pq.write_table(pa.Table.from_pylist(rows), small.path / "labels" / "1.parquet")
    said = []
    for _ in range(2):  # words that the policy does not know are no labels; then the file is mended
        for options in ([], ["--json"], ["--dry-run"]):
            result = run("retrain", small.job, *options, code=None)
            said.append(result.output)
        small.label(1)
    text = everything(small, "\n".join(said))
    for word in ("sesame", "poppy", "worker 1", "worker 2"):
        assert word not in text
    assert [one.outcome for one in small.history()] == ["failed", "failed", "promoted", "unchanged"]


@pytest.mark.slow
def test_when_models_are_promoted_depends_on_no_label(tmp_path):
    """The same people and questions, other answers: the same runs release, train and wait."""

    def decisions(name, seed):
        one = desk(tmp_path / name, ("rr:uses=14,block=1",), release={"min_new_labels": 25})
        for batch in (1, 2, 3, 4):
            one.label(batch, seed)
            retrain(one.job)
        return [(r.outcome, r.budget, r.new_labels, r.charged, r.model) for r in one.history()]

    assert decisions("one", 1) == decisions("other", 77)


def test_the_log_of_a_step_that_reads_labels_repeats_no_message_of_others(small, monkeypatch):
    """An engine's message may show a value: Could not convert string 'sesame'."""

    def fail(*_, **__):
        try:
            raise ValueError("sesame")
        except ValueError as error:
            raise LabelguardError("row 7 cannot be read") from error

    monkeypatch.setattr(releases, "privatize", fail)
    with pytest.raises(LabelguardError):
        retrain(small.job)
    log = (small.state / "errors.log").read_text()
    assert "sesame" not in log.replace('ValueError("sesame")', "")  # the line of code
    assert "row 7" in log and "ValueError" in log
    assert (small.state / "errors.log").stat().st_mode & 0o777 == 0o600
