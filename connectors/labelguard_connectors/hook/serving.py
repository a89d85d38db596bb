"""Which connectors a project's hook serves: how each is verified, and what it reads of a body."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labelguard.answers import connector as connectors
from labelguard.answers.connector import Answer, Connector, Settings, credential
from labelguard.errors import ConnectorError
from labelguard.project import ingestion
from labelguard.project.project import Project
from labelguard_connectors.hook.verification import Scheme

SECRET = "hook_secret"


@dataclass(frozen=True)
class Served:
    """A connector that is served. Its repr shows no secret."""

    name: str
    connector: Connector = field(repr=False)
    scheme: Scheme
    secrets: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Serving:
    """The connectors of a project by name, and why others are not served."""

    served: Mapping[str, Served]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, project: Project) -> Serving:
        """From labelguard.toml and the secrets that there are.

        Raises `ConnectorError` for settings that cannot be, and where nothing would be served.
        """
        served: dict[str, Served] = {}
        left_out: dict[str, str] = {}
        for name, settings in ingestion.settings(project).items():
            try:
                secrets = tuple(credential(name, SECRET).split())
            except ConnectorError as error:
                left_out[name] = str(error)
                continue
            served[name] = _served(settings, secrets)
        if not served:
            why = "; ".join(left_out.values()) or "labelguard.toml has no [connectors.NAME]"
            raise ConnectorError(f"there is no connector to serve: {why}")
        return cls(served, left_out)


def _served(settings: Settings, secrets: tuple[str, ...]) -> Served:
    scheme = Scheme.of(settings)
    scheme.check_secrets(settings.name, secrets)
    return Served(settings.name, connectors.connector(settings), scheme, secrets)


def heard(connector: Connector, body: bytes) -> Sequence[Answer]:
    """What a body tells. Raises `ConnectorError`, which holds nothing of it."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        raise ConnectorError("the body is not JSON") from None
    try:
        answers = connector.hear(event)
    except ConnectorError:
        raise
    except Exception as error:
        # A body that a connector was not made for is a letter to keep, whatever it stumbles over.
        raise ConnectorError(f"the connector stumbled over it ({type(error).__name__})") from None
    for answer in answers:
        _check(answer)
    return answers


def _check(answer: Answer) -> None:
    """What is in the inbox must fit into a segment: texts that are Unicode, versions of 64 bits."""
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
