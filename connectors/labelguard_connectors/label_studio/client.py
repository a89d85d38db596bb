"""Label Studio's REST interface: patient with a busy server, and silent about what it said."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from label_studio_sdk.client import LabelStudio as Sdk
from label_studio_sdk.core.api_error import ApiError
from label_studio_sdk.core.parse_error import ParsingError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from labelguard.errors import ConnectorError

_T = TypeVar("_T")
_TRIES = 5
_TIMEOUT_S = 120
_LONGEST_WAIT_S = 60
_LOST = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_CHECK = {
    401: "does not take the API key; check it, and whether it has expired",
    403: "does not let the API key's user do this; ask for a role that may see the whole project",
    404: "has no such project; check url and project in labelguard.toml",
}


class Client:
    """One server, with one key. Every method raises `ConnectorError`.

    What is read is asked for again where the connection breaks, or the server is busy (429) or
    broken (5xx). What is written is sent again only where it surely was not taken.
    """

    def __init__(self, url: str, key: str) -> None:
        self._where = f"Label Studio at {urlsplit(url).netloc}"
        self._http = httpx.Client(timeout=_TIMEOUT_S)  # a redirect would carry the key elsewhere
        self._sdk: Sdk = self._said(
            lambda: Sdk(base_url=f"{url}/", api_key=key, httpx_client=self._http, max_retries=0)  # type: ignore[no-untyped-call] # the SDK's
        )

    def project(self, number: int) -> Any:
        """Title, questions, counts of a project."""
        return self._read(lambda: self._sdk.projects.get(number))

    def tasks(
        self, project: int, filters: Sequence[Mapping[str, Any]], order: str, size: int, fields: str
    ) -> list[dict[str, Any]]:
        """The first `size` tasks of a project that pass all filters of the data manager.

        `fields` is `task_only`, or `all` for annotations too, the cancelled ones among them.
        """
        query = {"filters": {"conjunction": "and", "items": filters}, "ordering": [order]}
        found: Any = self._read(
            lambda: self._sdk.tasks.list(
                project=project,
                query=json.dumps(query),
                page=1,
                page_size=size,
                fields=fields,
                resolve_uri=False,  # texts as they are, as webhooks tell them
            )
        )
        return [task.model_dump(mode="json") for task in found.items or ()]

    def create(self, title: str, config: str) -> int:
        """A new project's id."""
        made: Any = self._write(lambda: self._sdk.projects.create(title=title, label_config=config))
        return int(made.id)

    def fill(self, project: int, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Add tasks to a project."""
        self._write(lambda: self._sdk.projects.import_tasks(project, request=list(tasks)))  # type: ignore[arg-type]

    def remove(self, project: int) -> None:
        """Delete a project."""
        self._write(lambda: self._sdk.projects.delete(project))

    def _read(self, call: Callable[[], _T]) -> _T:
        return self._said(lambda: _patiently(_passing)(call))

    def _write(self, call: Callable[[], _T]) -> _T:
        return self._said(lambda: _patiently(_not_taken)(call))

    def _said(self, call: Callable[[], _T]) -> _T:
        """Errors in our words: theirs hold headers, bodies and addresses with queries."""
        try:
            return call()
        except (ApiError, ParsingError) as error:
            status = error.status_code or 0
        except _LOST as error:
            kind = type(error).__name__
            raise ConnectorError(
                f"{self._where} cannot be reached ({kind}); check url, and whether it runs"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, KeyError):
            status = 200
        if status in _CHECK:
            raise ConnectorError(f"{self._where} {_CHECK[status]}") from None
        if status < 400:
            raise ConnectorError(
                f"{self._where} answers something else than Label Studio does; check url"
            )
        raise ConnectorError(f"{self._where} answers with status {status}; try again later")


def _patiently(again: Callable[[BaseException], bool]) -> Retrying:
    return Retrying(
        retry=retry_if_exception(again),
        wait=_wait,
        stop=stop_after_attempt(_TRIES),
        reraise=True,
    )


def _passing(error: BaseException) -> bool:
    """Whether it may be over in a moment."""
    if isinstance(error, ApiError):
        return error.status_code == 429 or (error.status_code or 0) >= 500
    return isinstance(error, _LOST)


def _not_taken(error: BaseException) -> bool:
    """Whether the server surely did nothing of what it was told."""
    if isinstance(error, ApiError):
        return error.status_code in (429, 503)
    return isinstance(error, _NOT_SENT)


_backoff = wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT_S)


def _wait(state: RetryCallState) -> float:
    """As long as the server asks for (Retry-After), within limits; else longer each time."""
    error = state.outcome.exception() if state.outcome else None
    headers = (error.headers or {}) if isinstance(error, ApiError) else {}
    asked = _seconds(headers.get("retry-after", ""))
    return _backoff(state) if asked is None else min(max(asked, 0.0), _LONGEST_WAIT_S)


def _seconds(text: str) -> float | None:
    """Retry-After: seconds, or a date."""
    if text.strip().isdecimal():
        return float(text)
    date = email.utils.parsedate_tz(text)
    return None if date is None else email.utils.mktime_tz(date) - time.time()
