"""Connectors of a project as endpoints of its hook, what they read of a body, and dead letters:
deliveries that could not be understood.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labelguard.answers import connector as connectors
from labelguard.answers.connector import Answer, Connector, credential
from labelguard.answers.inbox import Event, Letter
from labelguard.errors import ConnectorError
from labelguard.project.opening import OpenProject, Where
from labelguard.project.project import Project
from labelguard_connectors.hook.verification import Scheme

SECRET = "hook_secret"


@dataclass(frozen=True)
class Endpoint:
    """A connector that is served. Its repr shows no secret."""

    name: str
    connector: Connector = field(repr=False)
    scheme: Scheme
    secrets: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Endpoints:
    """The connectors of a project by name, and why others are not served."""

    served: Mapping[str, Endpoint]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, project: Project) -> Endpoints:
        """Read them from labelguard.toml and the secrets that there are.

        Raises `ConnectorError` for settings that cannot be, and where nothing would be served.
        """
        served: dict[str, Endpoint] = {}
        left_out: dict[str, str] = {}
        for name, settings in connectors.read_all(project.connectors).items():
            try:
                secrets = tuple(credential(name, SECRET).split())
            except ConnectorError as error:
                left_out[name] = str(error)
                continue
            scheme = Scheme.of(settings)
            scheme.check_secrets(name, secrets)
            served[name] = Endpoint(name, connectors.connector(settings), scheme, secrets)
        if not served:
            why = "; ".join(left_out.values()) or "labelguard.toml has no [connectors.NAME]"
            raise ConnectorError(f"there is no connector to serve: {why}")
        return cls(served, left_out)


def parse_delivery(connector: Connector, body: bytes) -> Sequence[Answer]:
    """Return the answers in a body. Raises `ConnectorError`, which holds nothing of it."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        raise ConnectorError("the body is not JSON") from None
    try:
        answers = connector.parse_event(event)
    except ConnectorError:
        raise
    except Exception as error:
        # A body that a connector was not made for is a letter to keep, whatever it stumbles over.
        raise ConnectorError(f"the connector failed on it ({type(error).__name__})") from None
    for answer in answers:
        _check(answer)
    return answers


def _check(answer: Answer) -> None:
    """Raise `ConnectorError` unless it fits a segment: texts in Unicode, versions of 64 bits."""
    texts = (answer.record, answer.labeler, answer.body)
    if not all(isinstance(text, str) for text in texts) or not answer.record:
        raise ConnectorError("an answer in it has no id, or one that is no text")
    if not isinstance(answer.version, int) or not -(1 << 63) <= answer.version < 1 << 63:
        raise ConnectorError("the time of an answer in it is not a number of microseconds")
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        raise ConnectorError("a text in it holds half of a surrogate pair") from None


@dataclass(frozen=True)
class RetryResult:
    """The number of dead letters that were understood when read again, and those that were not."""

    # letters that are understood now, and in the inbox or about nothing to keep
    understood: int
    # letters that are not; they are kept
    left: Sequence[Letter]


def dead_letters(where: Where = None) -> list[Letter]:
    """Return a project's dead letters, oldest first."""
    with contextlib.closing(OpenProject.open(where).answers.inbox()) as inbox:
        return inbox.letters()


def retry(where: Where = None, numbers: Sequence[int] = ()) -> RetryResult:
    """Let the connectors, as they are now, read dead letters again: those named, or all.

    Raises `ConnectorError` for a number that there is no letter of.
    """
    opened = OpenProject.open(where)
    settings = connectors.read_all(opened.project.connectors)
    with contextlib.closing(opened.answers.inbox()) as inbox:
        letters = inbox.letters()
        if unknown := set(numbers) - {letter.number for letter in letters}:
            raise ConnectorError(f"there is no dead letter {min(unknown)}")
        letters = [letter for letter in letters if not numbers or letter.number in numbers]
        names = {letter.connector for letter in letters} & set(settings)
        known = {name: connectors.connector(settings[name]) for name in names}
        left = []
        for letter in letters:
            if letter.connector not in known:
                left.append(letter)
                continue
            body = inbox.letter(letter.number)
            try:
                answers = parse_delivery(known[letter.connector], body)
            except ConnectorError:
                left.append(letter)
                continue
            if answers:
                inbox.put([Event(letter.connector, tuple(answers))])
            inbox.remove(letter.number)
    return RetryResult(len(letters) - len(left), left)
