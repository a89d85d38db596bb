"""Parts that packages bring by entry points: found by group and name, and no two under one name."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from labelguard.errors import LabelguardError


def names(group: str) -> list[str]:
    """What is installed in a group, sorted."""
    return sorted({entry.name for entry in entry_points(group=group)})


def door(group: str, name: str) -> EntryPoint | None:
    """The entry point of that name, or None.

    Raises `LabelguardError` where packages bring different parts by one name: which of them came
    first on the path must not decide what releases labels.
    """
    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(found) > 1:
        raise LabelguardError(
            f"{name!r} in {group} is more than one thing: {', '.join(sorted(found))}; "
            "uninstall the package that should not bring it"
        )
    return next(iter(found.values()), None)
