"""What other packages bring takes nobody's place, and no work is left out unseen."""

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from support.commands import run
from support.deaths import Killed
from support.doors import install
from support.preferences import TABLE
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError, PolicyError
from labelguard.learning.features import open_provider
from labelguard.release import request
from labelguard.report import overview
from labelguard.storage.executor import open_executor

BUDGET: dict[str, Any] = {"epsilon": 3, "delta": 1e-5}

MECHANISM = """
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class door:
    mechanism: ClassVar[str] = "labelguard.release.mechanisms.rr:RandomizedResponse"
"""


@pytest.mark.quick("rr")
@pytest.mark.parametrize("name", ["rr", "statistic", "props"])
def test_no_package_takes_the_place_of_a_mechanism(name, tmp_path, monkeypatch):
    install(tmp_path / "site", "labelguard.mechanisms", name, MECHANISM, monkeypatch)
    run("privatize", "--help")
    project = lg.init(tmp_path)
    with pytest.raises(LabelguardError, match=rf"'{name}' .* more than one thing: .*{name}_part"):
        make_release(TABLE, project=project, mechanism=name, **BUDGET)
    assert not overview.list_releases(project.state)


def test_no_package_takes_the_place_of_an_executor_or_of_features(tmp_path, monkeypatch):
    install(tmp_path / "one", "labelguard.executors", "local", "door = list", monkeypatch)
    install(tmp_path / "two", "labelguard.features", "length", "door = list", monkeypatch)
    with pytest.raises(LabelguardError, match="more than one thing"):
        open_executor()
    with pytest.raises(LabelguardError, match="more than one thing"):
        open_provider("length")


@pytest.mark.quick("")
@pytest.mark.parametrize("code", ["", "door = 7", "def door(:", "class door: pass"])
def test_whatever_is_wrong_with_a_mechanism_hinders_no_other(code, tmp_path, monkeypatch):
    install(tmp_path / "site", "labelguard.mechanisms", "broken", code, monkeypatch)
    run("privatize", "--help")
    project = lg.init(tmp_path)
    with pytest.raises(PolicyError, match="broken cannot be loaded"):
        make_release(TABLE, project=project, mechanism="broken", **BUDGET)
    assert make_release(TABLE, project=project, mechanism="rr", **BUDGET).card["mechanism"] == "rr"


class Lazy:
    """Answers for every second bucket, when it comes to labels."""

    shares_memory = True
    close = staticmethod(lambda: None)

    def map(self, work, task, buckets):
        found = [*buckets]
        if work.__name__ == "randomize_bucket":
            found = found[::2]
        return (work(task, bucket) for bucket in found)


def test_work_that_an_executor_left_out_is_no_release(tmp_path, monkeypatch):
    project = lg.init(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("labelguard.release.privatize.open_executor", lambda *place: Lazy())
        with pytest.raises(LabelguardError, match="answered for 8 of 16 buckets"):
            make_release(TABLE, project=project, mechanism="rr", **BUDGET)
    assert [line.state for line in overview.list_releases(project.state)] == ["computing"]
    made = make_release(TABLE, project=project, mechanism="rr", **BUDGET)
    assert (made.card["counts"]["rows"], made.card["counts"]["charged"]) == (len(TABLE), 7)


@pytest.mark.quick("rr-event", "auto-event")
@pytest.mark.parametrize("option", ["event", "name", "epsilom"])
@pytest.mark.parametrize("mechanism", ["rr", "auto"])
def test_an_option_that_there_is_not_is_refused_before_anything_is_read(
    option, mechanism, tmp_path
):
    project = lg.init(tmp_path)
    with pytest.raises(PolicyError, match=f"unknown option '{option}'"):
        make_release("nowhere.parquet", project=project, **{"mechanism": mechanism, option: "x"})
    with pytest.raises(PolicyError, match=f"unknown option '{option}'"):
        request.request_release(project, mechanism, {option: "x"})


# A worker on another machine does not know that its job crashed, and works on beside the next.


PRICE: dict[str, Any] = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}


class Dying:
    """Its job dies when work of one kind was handed out."""

    shares_memory = True
    close = staticmethod(lambda: None)

    def __init__(self, kind):
        self.kind = kind
        self.left: Any = None

    def map(self, work, task, buckets):
        if work.__name__ == self.kind:
            self.left = task
            raise Killed
        return (work(task, bucket) for bucket in buckets)


class Haunted:
    """Works beside the workers of an earlier job, which are behind."""

    shares_memory = True
    close = staticmethod(lambda: None)

    def __init__(self, kind, left):
        self.kind, self.left = kind, left

    def map(self, work, task, buckets):
        for bucket in buckets:
            result = work(task, bucket)
            if work.__name__ == self.kind:
                self._earlier(work, bucket)
            yield result

    def _earlier(self, work, bucket):
        with contextlib.suppress(OSError):  # what it worked on is gone
            work(self.left, bucket)


def test_it_draws_no_second_coin_of_a_released_label(tmp_path, monkeypatch):
    project, dying = lg.init(tmp_path), Dying("randomize_bucket")
    with monkeypatch.context() as patch:
        patch.setattr("labelguard.release.privatize.open_executor", lambda *place: dying)
        with pytest.raises(Killed):
            make_release(TABLE, project=project, **PRICE)
        # It comes as far as the map, and not to the released rows.
        haunted = Haunted(dying.kind, replace(dying.left, outcomes=tmp_path / "lost"))
        patch.setattr("labelguard.release.privatize.open_executor", lambda *place: haunted)
        made = make_release(TABLE, project=project, **PRICE)
    later = make_release(TABLE, mechanism="rr", project=project, exhausted="drop")
    assert later.card["counts"]["charged"] == 0
    assert sorted(lg.load(later).rows()) == sorted(lg.load(made).rows())
    assert overview.verify(project.state).ok
