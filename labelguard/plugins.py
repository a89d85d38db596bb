"""Entry points of installed packages, by group and name; no two may have one name."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path

from labelguard.errors import LabelguardError

# The group of ways to release labels (`labelguard.release.mechanisms`).
MECHANISMS = "labelguard.mechanisms"


def list_entry_points(group: str) -> list[str]:
    """Return the names that are installed in a group, sorted."""
    return sorted({entry.name for entry in _entries(group)})


def find_entry_point(group: str, name: str) -> EntryPoint | None:
    """Return the entry point of that name, or None.

    Raises `LabelguardError` where packages bring different parts by one name: which of them came
    first on the path must not decide what releases labels.
    """
    matches = {entry.value: entry for entry in _entries(group) if entry.name == name}
    if len(matches) > 1:
        raise LabelguardError(
            f"{name!r} in {group} is more than one thing: {', '.join(sorted(matches))}; "
            "uninstall the package that should not bring it"
        )
    return next(iter(matches.values()), None)


def _entries(group: str) -> EntryPoints:
    """A group's entry points, as they are now."""
    return _load_entries(group, tuple((path, _modified_at(path)) for path in sys.path))


@lru_cache(maxsize=16)
def _load_entries(group: str, path: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Looked up again only when a directory of `path` has changed: a package came or went."""
    return entry_points(group=group)


def _modified_at(directory: str) -> int:
    with suppress(OSError):
        return Path(directory or ".").stat().st_mtime_ns
    return 0
