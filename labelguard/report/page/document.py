"""What a report holds, whatever it is written down as."""

from __future__ import annotations

from dataclasses import dataclass

from labelguard.release.sections import Section


@dataclass(frozen=True)
class Report:
    """What is told of a project."""

    title: str
    """what it is about"""
    at: str
    """when it was made, UTC"""
    labelguard: str
    """the version that made it"""
    ok: bool
    """whether everything that was verified holds"""
    summary: tuple[tuple[str, str], ...]
    """the few facts that come first"""
    sections: tuple[Section, ...]
    """what follows, in order"""
