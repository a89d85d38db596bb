"""Optional dependencies: whether what an extra brings is installed, and how to install it here."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, requires
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
