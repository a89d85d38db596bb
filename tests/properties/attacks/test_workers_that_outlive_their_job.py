"""A worker on another machine does not know that its job crashed, and works on beside the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.preferences import TABLE

import labelguard as lg
from labelguard.report import overview

BUDGET: dict[str, Any] = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}
Work = Callable[[Any, int], Any]


class Crash(BaseException):
    """The job dies; what it gave to its workers does not."""


class Dying:
    """Its job dies when work of one kind was handed out."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.left: Any = None

    def map(self, work: Work, task: Any, buckets: Iterable[int]) -> Iterator[Any]:
        if work.__name__ == self.kind:
            self.left = task
            raise Crash
        return (work(task, bucket) for bucket in buckets)


class Haunted:
    """Works beside the workers of an earlier job, which are behind."""

    def __init__(self, kind: str, left: Any) -> None:
        self.kind, self.left = kind, left

    def map(self, work: Work, task: Any, buckets: Iterable[int]) -> Iterator[Any]:
        for bucket in buckets:
            result = work(task, bucket)
            if work.__name__ == self.kind:
                self._earlier(work, bucket)
            yield result

    def _earlier(self, work: Work, bucket: int) -> None:
        with contextlib.suppress(OSError):  # what it worked on is gone
            work(self.left, bucket)


def test_it_draws_no_second_coin_of_a_released_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, dying = lg.init(tmp_path), Dying("randomize_bucket")
    with monkeypatch.context() as patch:
        patch.setattr("labelguard.release.privatize.open_executor", lambda workers: dying)
        with pytest.raises(Crash):
            lg.privatize(TABLE, project=project, **BUDGET)
        # It comes as far as the map, and not to the released rows.
        haunted = Haunted(dying.kind, replace(dying.left, outcomes=tmp_path / "lost"))
        patch.setattr("labelguard.release.privatize.open_executor", lambda workers: haunted)
        made = lg.privatize(TABLE, project=project, **BUDGET)
    later = lg.privatize(TABLE, mechanism="rr", project=project, exhausted="drop")
    assert later.card["counts"]["charged"] == 0
    assert sorted(lg.load(later).rows()) == sorted(lg.load(made).rows())
    assert overview.verify(project.state).ok
