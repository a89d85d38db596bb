"""Optional dependencies and entry points: what is installed here, and how to install the rest."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from functools import cache, lru_cache
from importlib.metadata import (
    EntryPoint,
    EntryPoints,
    PackageNotFoundError,
    distribution,
    entry_points,
    requires,
)
from pathlib import Path
from urllib.parse import unquote, urlparse

from labelguard.errors import LabelguardError

_NAME = re.compile(r"[A-Za-z0-9._-]+")


class MissingExtra(LabelguardError):
    """An operation needs an optional dependency; the message says what to install."""

    exit_code = 2


def list_missing_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed; nothing of them is loaded."""
    marker = re.compile(rf"""extra == ["']{re.escape(extra)}["']""")
    wanted = [text for text in _requirements() if marker.search(text)]
    names = [match[0] for text in wanted if (match := _NAME.match(text))]
    return [name for name in names if not _is_installed(name)]


def require_extra(extra: str, what: str) -> None:
    """Raise `MissingExtra` unless the extra is installed; `what` is what needs it."""
    if lacking := list_missing_packages(extra):
        raise MissingExtra(
            f"{what} needs {', '.join(lacking)}; install the extra with: "
            f"{format_install_line(extra)}"
        )


def format_install_line(extra: str) -> str:
    """The command that installs an extra, quoted for shells, from where labelguard came from."""
    return f"pip install '{_find_installation_source()}[{extra}]'"


def _find_installation_source() -> str:
    """The directory labelguard was installed from (PEP 610), else its name on the index."""
    try:
        origin = json.loads(distribution("labelguard").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return "labelguard"
    url = urlparse(origin.get("url", ""))
    return unquote(url.path) if url.scheme == "file" and "dir_info" in origin else "labelguard"


@cache
def _requirements() -> list[str]:
    return requires("labelguard") or []


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


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
