"""Who is told how runs end: signed, once, whatever the receiver does, and nothing but facts."""

import contextlib

import pytest
import tenacity
from support.job_projects import desk
from support.receivers import SECRET, as_text, receiver

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.extras import MissingExtra
from labelguard.jobs.run import retrain
from labelguard.jobs.state import JobState


@pytest.fixture
def somebody(monkeypatch):
    monkeypatch.setenv("LABELGUARD_NOTIFY_SECRET", SECRET)
    monkeypatch.setattr(tenacity.nap.time, "sleep", lambda seconds: None)
    with receiver() as found:
        yield found


def told(somebody, here, allow="rr:uses=64,block=1", **settings):
    return desk(here / "desk", (allow,), notify={"url": somebody.url}, **settings)


def test_a_promotion_is_told_with_its_judgement_and_the_budget(somebody, tmp_path):
    small = told(somebody, tmp_path)
    done = retrain(small.job)
    [message] = somebody.messages()
    assert message["type"] == "run.promoted" and message["timestamp"]
    data = message["data"]
    assert (data["job"], data["run"], data["model"]) == ("job", 1, "0001")
    assert data["release"] == done.release and data["judgement"]["by"] == "none"
    assert data["budget_left"] == {"rr": round(1 - 30 / (5 * 64), 4)}
    assert retrain(small.job).outcome == "unchanged" and len(somebody.requests) == 1


def test_nobody_and_no_place_is_in_a_message(somebody, tmp_path):
    small = told(somebody, tmp_path, "rr:uses=8,block=1")
    retrain(small.job)
    (small.path / "labels" / "secret place.parquet").write_text("no labels")
    with pytest.raises(LabelguardError, match=r"secret place\.parquet"):
        retrain(small.job)
    text = as_text(somebody.messages())
    for word in (str(tmp_path), "secret", "worker", "answer", "question", "/"):
        assert word not in text
    failed = somebody.messages()[-1]
    assert failed["type"] == "run.failed" and "release failed" in failed["data"]["why"]
    small.asks(notify={"url": somebody.url}, gate={"by": "probes", "probes": "nowhere.csv"})
    with pytest.raises(LabelguardError, match=r"nowhere\.csv"):
        retrain(small.job)
    assert somebody.messages()[-1] == failed  # where a check fails, nothing was begun


@pytest.mark.slow
def test_a_receiver_that_is_down_fails_no_run_and_hears_of_it_later_once(somebody, tmp_path):
    small = told(somebody, tmp_path)
    somebody.statuses = [503] * 3
    done = retrain(small.job)
    assert done.outcome == "promoted" and "HTTP 503" in done.notes[-1]
    assert len(somebody.requests) == 3 and len(set(somebody.ids)) == 1
    assert retrain(small.job).notes == ()
    assert len(somebody.requests) == 4 and len(set(somebody.ids)) == 1
    retrain(small.job)
    assert len(somebody.requests) == 4


def test_a_redirect_is_not_followed_and_nobody_may_listen(somebody, tmp_path):
    small = told(somebody, tmp_path)
    somebody.statuses = [307]
    assert "HTTP 307" in retrain(small.job).notes[-1]
    assert [path for path, _, _ in somebody.requests] == ["/hook"]
    small.asks(notify={"url": "http://127.0.0.1:9/closed"})
    assert "ConnectError" in retrain(small.job).notes[-1]


def test_what_stays_on_this_machine_goes_through_no_proxy(somebody, tmp_path, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    small = told(somebody, tmp_path)
    with receiver() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/hook"))
        retrain(small.job)
    assert proxy.requests == [] and len(somebody.messages()) == 1


@pytest.mark.slow
def test_a_message_that_nobody_may_have_taken_comes_again_under_its_id(
    somebody, tmp_path, monkeypatch
):
    small = told(somebody, tmp_path)

    class Killed(BaseException):
        pass

    def die(self, name, facts):
        if name == "notices.json" and not facts["waiting"]:
            raise Killed
        write(self, name, facts)

    write = JobState.write
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(JobState, "write", die)
        retrain(small.job)
    assert retrain(small.job).run == 1
    assert len(somebody.ids) == 2 and len(set(somebody.ids)) == 1


@pytest.mark.slow
def test_a_budget_that_runs_low_is_told_once(somebody, tmp_path):
    small = told(somebody, tmp_path, "rr:uses=14,block=1")
    small.asks(notify={"url": somebody.url, "budget_below": 0.3})
    for batch in (2, 3):
        retrain(small.job)
        small.label(batch)
    retrain(small.job)
    kinds = [message["type"] for message in somebody.messages()]
    assert kinds.count("budget.low") == 1
    low = next(one["data"] for one in somebody.messages() if one["type"] == "budget.low")
    assert (low["below"], low["run"]) == (["rr"], 2)


def test_where_nothing_may_be_sent_is_refused_before_anything_is_charged(
    somebody, tmp_path, monkeypatch
):
    small = told(somebody, tmp_path)
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
    small = told(somebody, tmp_path)
    monkeypatch.delenv("LABELGUARD_NOTIFY_SECRET")
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("LABELGUARD_NOTIFY_SECRET_FILE", str(tmp_path / "secret"))
    retrain(small.job)
    assert len(somebody.messages()) == 1


def test_what_is_not_installed_is_said_before_anything_is_charged(somebody, tmp_path, monkeypatch):
    small = told(somebody, tmp_path)
    monkeypatch.setattr(extras, "missing_packages", lambda extra: ["standardwebhooks"])
    with pytest.raises(MissingExtra, match="install"):
        retrain(small.job)
    assert small.charged() == 0
    with contextlib.suppress(LabelguardError):
        retrain(small.job)
