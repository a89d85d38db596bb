"""The model in use: always whole, always one that the register knows.

Who is told how runs end: signed, once, whatever the receiver does, and nothing but facts.
"""

import contextlib
import errno
import hashlib
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.commands import run
from support.deaths import killed_in
from support.job_projects import desk
from support.receivers import SECRET, as_text, receiver
from support.tools import connected, deliver

import labelguard as lg
from labelguard import extras
from labelguard.errors import ConnectorError, InvalidLabels, LabelguardError, ProjectBusy
from labelguard.extras import MissingExtra
from labelguard.jobs import finish, metrics, start
from labelguard.jobs import run as runs
from labelguard.jobs.run import dry_run, retrain
from labelguard.jobs.settings import NotifySettings
from labelguard.jobs.state import JobState, Models
from labelguard.project import retention
from labelguard.project.attempts import REASONS
from labelguard.project.project import CONFIG

RULES = Path(__file__).parents[2] / "examples" / "alerts.yml"
FACTS = {"run": 1, "release": "r0001"}


@pytest.fixture
def models(tmp_path):
    made = Models(tmp_path / "models", "job", "project")
    made.directory.mkdir()
    return made


def candidate(models, text="head"):
    path = models.prepare_candidate("lesson")
    path.mkdir(parents=True)
    (path / "head.npz").write_text(text)
    return path


def test_a_model_is_numbered_registered_with_its_sums_and_in_use(models):
    models.promote(candidate(models), models.next_name, FACTS, 5)
    [entry] = models.registry
    assert entry["files"] == {"head.npz": hashlib.sha256(b"head").hexdigest()}
    assert models.in_use == "0001" and models.next_name == "0002"
    assert (models.directory / "current/head.npz").read_text() == "head"


def test_a_directory_of_models_has_one_job_of_one_project(models):
    models.promote(candidate(models), models.next_name, FACTS, 5)
    for job, project, other in (("job", "elsewhere", "project"), ("other", "project", "job")):
        with pytest.raises(LabelguardError, match=f"those of another {other}"):
            Models(models.directory, job, project)


@pytest.mark.quick("True-_add_to_registry", "False-_add_to_registry")
@pytest.mark.parametrize("step", ["_add_to_registry", "_point_current_to", "_remove_old_models"])
@pytest.mark.parametrize("before", [True, False])
def test_a_promotion_that_was_cut_off_is_done_again(
    step: str, before: bool, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.promote(candidate(models, "old"), "0001", FACTS, 1)
    whole = getattr(Models, step)

    def cut(*arguments):
        if not before:
            whole(*arguments)
        raise InterruptedError

    path = candidate(models, "new")
    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(Models, step, cut)
        models.promote(path, "0002", FACTS, 1)
    again = Models(models.directory, "job", "project")  # it is sound at any time
    assert (models.directory / "current" / "head.npz").read_text() in ("old", "new")
    again.promote(path, "0002", FACTS, 1)
    assert (models.directory / "current" / "head.npz").read_text() == "new"
    assert [one["model"] for one in again.registry] == ["0001", "0002"]
    assert [one.name for one in models.directory.glob("0*")] == ["0002"]


def test_who_reads_the_model_in_use_always_finds_one(models):
    models.promote(candidate(models, "1"), "0001", FACTS, 99)
    done, missing = threading.Event(), []

    def read():
        while not done.is_set():
            try:
                (models.directory / "current" / "head.npz").read_text()
            except OSError as error:
                missing.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2, 40):
        models.promote(candidate(models, str(number)), f"{number:04d}", FACTS, 99)
    done.set()
    reader.join()
    assert missing == []


def test_a_model_in_use_is_never_removed(models):
    for number in (1, 2, 3):
        models.promote(candidate(models), f"{number:04d}", FACTS, 3)
    (models.directory / "current").unlink()
    (models.directory / "current").symlink_to("0001")
    models._remove_old_models(1)
    assert {path.name for path in models.directory.glob("0*")} == {"0001", "0003"}


def test_two_jobs_do_not_promote_into_one_directory_at_once(models):
    with (
        models.lock(),
        pytest.raises(ProjectBusy),
        Models(models.directory, "job", "project").lock(),
    ):
        pass


def test_a_register_that_is_none_is_refused(tmp_path):
    whole = {"format": 1, "project": "project", "job": "job", "models": []}
    wrong = ({"models": [{}]}, {"job": None}, {"project": 1}, {"format": 2})
    without = [{k: v for k, v in whole.items() if k != name} for name in whole]
    for text in ("", "[]", *map(json.dumps, [*without, *(whole | one for one in wrong)])):
        (tmp_path / "registry.json").write_text(text)
        with pytest.raises(LabelguardError, match="registry"):
            Models(tmp_path, "job", "project")


# Jobs whose labels come from a tool: pulled by the run, or heard by a hook before it.


@pytest.fixture
def pulled(tmp_path, monkeypatch):
    """A job that pulls from a tool with twelve answers."""
    made = desk(tmp_path / "desk")
    project, tool = connected(lg.find(made.path), tmp_path, monkeypatch)
    answer(tool, range(12))
    return made, project, tool


def answer(tool, numbers):
    for number in numbers:
        tool.answer(f"annotator {number % 3}", number, "left" if number % 2 else "right")


def test_a_run_pulls_what_is_new_and_releases_it(pulled, monkeypatch):
    small, _, tool = pulled
    small.asks(input=None, pull=["desk"])
    assert retrain(small.job).new_labels == 12
    with monkeypatch.context() as patch:
        patch.setattr(retention, "explain_wait", lambda opened: "retention waits")
        assert "retention waits" in retrain(small.job).notes
    assert retrain(small.job).outcome == "unchanged"
    answer(tool, range(12, 24))
    assert retrain(small.job).new_labels == 12 and small.charged() == 24


def test_a_job_of_what_was_pulled_pulls(pulled):
    small, *_ = pulled
    small.asks(input=None, pull=["desk"])
    retrain(small.job)
    small.job.unlink()
    start.write_job(small.job, small.path)
    found = yaml.safe_load(small.job.read_text())
    assert (found["pull"], found["source"]) == (["desk"], "desk") and "input" not in found
    assert not dry_run(small.job).releases


def test_what_a_hook_heard_is_released_without_a_pull(pulled):
    small, project, tool = pulled
    small.asks(input=None)
    for first, why in ((20, "nothing has been ingested yet"), (40, "everything ingested so far")):
        numbers = range(first, first + 13)
        deliver(project, *(tool.answer(f"annotator {n % 3}", n, "left") for n in numbers))
        said = dry_run(small.job)
        assert (said.ingests, said.releases, said.charged) == (13, False, 0)
        assert said.why.startswith(why)
        shown = run("retrain", str(small.job), "--dry-run").stdout
        assert "13 answers waiting in the inbox; what is new there is not" in shown
        assert "nothing new" not in shown
        assert retrain(small.job).new_labels == 13


def test_a_connector_that_there_is_not_is_said_before_anything_is_pulled(pulled, monkeypatch):
    small, *_ = pulled
    monkeypatch.setattr(runs.ingestion, "pull", lambda *_: pytest.fail("it pulled"))
    small.asks(input=None, pull=["desk", "nowhere"])
    with pytest.raises(ConnectorError, match="nowhere"):
        retrain(small.job)


@pytest.mark.parametrize("kind", ["label-studio", "argilla"])
def test_a_key_that_is_missing_is_said_by_the_check(kind, pulled, monkeypatch):
    small, project, _ = pulled
    own = {"label-studio": "project = 1", "argilla": 'dataset = "a"\nworkspace = "b"'}[kind]
    with (project.state / CONFIG).open("a") as file:
        file.write(f'\n[connectors.ours]\nkind = "{kind}"\nurl = "http://localhost:1"\n{own}\n')
    small.asks(input=None, pull=["ours"])
    for begin in (dry_run, retrain):
        with pytest.raises(ConnectorError, match="connector ours: no api_key"):
            begin(small.job)
    assert not (small.state / "history.jsonl").exists()  # none was begun
    monkeypatch.setenv("LABELGUARD_OURS_API_KEY", "0123456789")
    assert dry_run(small.job).pulls == ("ours",)


def test_a_tool_that_is_down_fails_the_run_and_the_next_one_goes_on(pulled, monkeypatch):
    small, *_ = pulled
    small.asks(input=None, pull=["desk"])

    def down(*_):
        raise ConnectorError("it is down")

    with monkeypatch.context() as patch, pytest.raises(ConnectorError):
        patch.setattr(runs.ingestion, "pull", down)
        retrain(small.job)
    assert small.history()[0].why == "pull failed"  # no kind: it may be a label's
    assert retrain(small.job).outcome == "promoted"


@pytest.fixture
def somebody(monkeypatch):
    monkeypatch.setenv("LABELGUARD_NOTIFY_SECRET", SECRET)
    with receiver() as found:
        yield found


def make_desk(somebody, here, allow="rr:uses=64,block=1", **settings):
    return desk(here / "desk", (allow,), notify={"url": somebody.url}, **settings)


def test_a_promotion_is_told_with_its_judgement_and_the_budget(somebody, tmp_path):
    small = make_desk(somebody, tmp_path)
    done = retrain(small.job)
    [message] = somebody.messages()
    assert message["type"] == "run.promoted" and message["timestamp"]
    data = message["data"]
    assert (data["job"], data["run"], data["model"]) == ("job", 1, "0001")
    assert data["release"] == done.release and data["judgement"]["by"] == "none"
    assert data["budget_left"] == {"rr": round(1 - 30 / (5 * 64), 4)}
    assert retrain(small.job).outcome == "unchanged" and len(somebody.requests) == 1


def test_nobody_and_no_place_is_in_a_message(somebody, tmp_path):
    small = make_desk(somebody, tmp_path, "rr:uses=8,block=1")
    retrain(small.job)
    (small.path / "labels" / "secret place.parquet").write_text("no labels")
    with pytest.raises(InvalidLabels, match=r"release failed: the input cannot be read") as failed:
        retrain(small.job)
    [note] = failed.value.__notes__
    log = Path(note.removeprefix("traceback: "))
    assert "secret place.parquet: cannot be read" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    text = as_text(somebody.messages())
    for word in (str(tmp_path), "secret", "worker", "answer", "question", "/"):
        assert word not in text
    last = somebody.messages()[-1]
    assert last["type"] == "run.failed" and "release failed" in last["data"]["why"]
    small.asks(notify={"url": somebody.url}, gate={"by": "probes", "probes": "nowhere.csv"})
    with pytest.raises(LabelguardError, match=r"nowhere\.csv"):
        retrain(small.job)
    assert somebody.messages()[-1] == last  # where a check fails, nothing was begun


@pytest.mark.slow
def test_a_receiver_that_is_down_fails_no_run_and_hears_of_it_later_once(somebody, tmp_path):
    small = make_desk(somebody, tmp_path)
    somebody.statuses = [503]
    done = retrain(small.job)
    assert done.outcome == "promoted" and "HTTP 503" in done.notes[-1]
    assert len(somebody.requests) == 1 and len(set(somebody.ids)) == 1
    assert retrain(small.job).notes == ()
    assert len(somebody.requests) == 2 and len(set(somebody.ids)) == 1
    retrain(small.job)
    assert len(somebody.requests) == 2


def test_a_redirect_is_not_followed_and_nobody_may_listen(somebody, tmp_path):
    small = make_desk(somebody, tmp_path)
    somebody.statuses = [307]
    assert "HTTP 307" in retrain(small.job).notes[-1]
    assert [path for path, _, _ in somebody.requests] == ["/hook"]
    small.asks(notify={"url": "http://127.0.0.1:9/closed"})
    assert "ConnectError" in retrain(small.job).notes[-1]


def test_what_stays_on_this_machine_goes_through_no_proxy(somebody, tmp_path, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    small = make_desk(somebody, tmp_path)
    with receiver() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/hook"))
        retrain(small.job)
    assert proxy.requests == [] and len(somebody.messages()) == 1


@pytest.mark.slow
def test_a_message_that_nobody_may_have_taken_comes_again_under_its_id(
    somebody, tmp_path, monkeypatch
):
    small = make_desk(somebody, tmp_path)

    def delivered(_, name, facts):
        return name == "notices.json" and not facts["waiting"]

    with killed_in(JobState, "write_json", here=delivered):
        retrain(small.job)
    assert retrain(small.job).run == 1
    assert len(somebody.ids) == 2 and len(set(somebody.ids)) == 1


@pytest.mark.slow
def test_a_budget_that_runs_low_is_told_once(somebody, tmp_path):
    small = make_desk(somebody, tmp_path, "rr:uses=14,block=1")
    small.asks(notify={"url": somebody.url, "budget_below": 0.3})
    for batch in (2, 3):
        retrain(small.job)
        small.label(batch)
    retrain(small.job)
    kinds = [message["type"] for message in somebody.messages()]
    assert kinds.count("budget.low") == 1
    low = next(one["data"] for one in somebody.messages() if one["type"] == "budget.low")
    assert (low["below"], low["run"]) == (["rr"], 2)


@pytest.mark.parametrize(("nobodies", "told"), [(84, ["rr"]), (40, [])])
def test_a_budget_is_low_when_many_have_nothing_left_whatever_the_mean(nobodies, told, monkeypatch):
    """400 labelers, of whom few or many have nothing left, and all others all of it."""
    use = SimpleNamespace(
        event="rr", allowed=400, left=400 - nobodies, labelers=400, exhausted_labelers=nobodies
    )
    known = SimpleNamespace(allowances=[use])
    monkeypatch.setattr(finish.overview, "read_budget", lambda home: known)
    sent: list[Any] = []
    monkeypatch.setattr(finish, "_deliver", lambda settings, message: sent.append(message["body"]))
    state = SimpleNamespace(read_json=lambda name: None, write_json=lambda name, facts: None)
    run = SimpleNamespace(job="job", run=1, outcome="unchanged", started_at="", ended_at="")
    finish.notify(NotifySettings(url="https://example.org"), None, state, run)  # type: ignore[arg-type]
    assert [one["data"]["below"] for one in sent] == ([told] if told else [])
    assert all(one["data"]["exhausted"] == {"rr": 0.21} for one in sent)


def test_where_nothing_may_be_sent_is_refused_before_anything_is_charged(
    somebody, tmp_path, monkeypatch
):
    small = make_desk(somebody, tmp_path)
    for url in (
        "http://example.org/hook",
        "https://user:pass@example.org",
        "https://",
        "localhost",
    ):
        small.asks(notify={"url": url})
        with pytest.raises(LabelguardError, match=r"notify\.url"):
            retrain(small.job)
    small.asks(notify={"url": somebody.url})
    for secret in ("", "  ", "whsec_", "whsec_c2VjcmV0", "not base64, yet long enough!!"):
        monkeypatch.setenv("LABELGUARD_NOTIFY_SECRET", secret)
        with pytest.raises(LabelguardError, match="secret") as caught:
            retrain(small.job)
        assert "c2VjcmV0" not in str(caught.value)
    assert small.charged() == 0


def test_the_secret_may_be_in_a_file(somebody, tmp_path, monkeypatch):
    small = make_desk(somebody, tmp_path)
    monkeypatch.delenv("LABELGUARD_NOTIFY_SECRET")
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("LABELGUARD_NOTIFY_SECRET_FILE", str(tmp_path / "secret"))
    retrain(small.job)
    assert len(somebody.messages()) == 1


def test_what_is_not_installed_is_said_before_anything_is_charged(somebody, tmp_path, monkeypatch):
    small = make_desk(somebody, tmp_path)
    monkeypatch.setattr(extras, "list_missing_packages", lambda extra: ["standardwebhooks"])
    with pytest.raises(MissingExtra, match="install"):
        retrain(small.job)
    assert small.charged() == 0
    with contextlib.suppress(LabelguardError):
        retrain(small.job)


def read_metrics(small):
    """The samples of the job's file, by name and labels other than the job's."""
    path = small.state / "metrics.prom"
    assert path.stat().st_mode & 0o777 == 0o600
    samples: dict[Any, float] = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("job") == "job"
            samples[sample.name.removeprefix("labelguard_job_"), *labels.values()] = sample.value
    return samples


def test_every_run_writes_metrics_and_a_failure_its_reason_alone(somebody, tmp_path):
    small = make_desk(somebody, tmp_path)
    retrain(small.job)
    first = read_metrics(small)
    assert (first["runs_total", "promoted"], first["releases_total",]) == (1, 1)
    assert 0 < first["last_success_timestamp",] <= first["last_run_timestamp",]
    retrain(small.job)
    assert read_metrics(small)["runs_total", "unchanged"] == 1
    small.asks(gate={"by": "probes", "probes": "nowhere.csv"})
    with pytest.raises(LabelguardError, match=r"nowhere\.csv"):
        retrain(small.job)
    last = read_metrics(small)
    failed = {name[1] for name, value in last.items() if name[0] == "failed" and value}
    assert len(failed) == 1 and failed <= {*REASONS}
    measured = {f"labelguard_job_{name}" for name, *_ in last}
    assert {*re.findall(r"labelguard_job_\w+", RULES.read_text())} <= measured
    assert "nowhere" not in (small.state / "metrics.prom").read_text()


def test_numbers_that_cannot_be_written_fail_no_run(somebody, tmp_path, monkeypatch):
    small = make_desk(somebody, tmp_path)

    def fill(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(metrics, "write_atomically", fill)
    assert retrain(small.job).outcome == "promoted"
    assert not (small.state / "metrics.prom").exists()
