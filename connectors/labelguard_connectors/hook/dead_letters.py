"""Deliveries that could not be understood: shown without what is in them, and tried again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from labelguard.answers import connector as connectors
from labelguard.answers.inbox import Event, Inbox, Letter
from labelguard.errors import ConnectorError
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject, Where
from labelguard_connectors.hook.serving import heard


@dataclass(frozen=True)
class Retried:
    """What became of dead letters that were tried again."""

    understood: int
    """letters that are understood now, and in the inbox or about nothing to keep"""
    left: Sequence[Letter]
    """letters that are not; they are kept"""


def letters(where: Where = None) -> list[Letter]:
    """A project's dead letters, oldest first."""
    with contextlib.closing(ingestion.inbox_of(OpenProject.open(where))) as inbox:
        return inbox.letters()


def retry(where: Where = None, numbers: Sequence[int] = ()) -> Retried:
    """Let the connectors, as they are now, read dead letters again: those named, or all.

    Raises `ConnectorError` for a number that there is no letter of.
    """
    opened = OpenProject.open(where)
    with contextlib.closing(ingestion.inbox_of(opened)) as inbox:
        found = inbox.letters()
        if unknown := set(numbers) - {letter.number for letter in found}:
            raise ConnectorError(f"there is no dead letter {min(unknown)}")
        wanted = [letter for letter in found if not numbers or letter.number in numbers]
        settings = ingestion.settings(opened.project)
        known = {
            name: connectors.connector(settings[name])
            for name in {letter.connector for letter in wanted} & set(settings)
        }
        left = [letter for letter in wanted if not _understood(inbox, letter, known)]
        return Retried(len(wanted) - len(left), left)


def _understood(inbox: Inbox, letter: Letter, known: dict[str, connectors.Connector]) -> bool:
    """Put a letter where it would be, had it been understood at first; then forget it."""
    if letter.connector not in known:
        return False
    body = inbox.letter(letter.number)
    try:
        answers = heard(known[letter.connector], body)
    except ConnectorError:
        return False
    if answers:
        inbox.put([Event(letter.connector, tuple(answers))])
    inbox.remove(letter.number)
    return True
