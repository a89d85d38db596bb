"""The windows of a sum: one noisy statistic a release, as they were released."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from labelguard.errors import ProjectError
from labelguard.ledger.records import ReleaseRecord
from labelguard.release.head import Window

__all__ = ["FILE", "windows_of"]

FILE = "window.npz"


def windows_of(released: Path, first: str, records: Iterable[ReleaseRecord]) -> Iterator[Window]:
    """The windows of the sum that the release `first` began, in the order of `records`.

    Raises `ProjectError` for one that is missing.
    """
    for record in records:
        if first not in (record.id, record.settings["parameters"].get("first")):
            continue
        path = released / record.id / FILE
        if path.exists():
            yield Window.load(path)
        elif record.drawn:
            raise ProjectError(f"{path} is missing; restore it from a backup")
