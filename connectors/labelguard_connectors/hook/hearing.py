"""A verified body, as its connector understands it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from labelguard.errors import ConnectorError
from labelguard.ingest.connector import Answer, Connector


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
