"""Label Studio's REST interface: patient with a busy server, and silent about what it said.

Spoken to directly: the models of Label Studio's SDK warn of values that they do not expect by
printing them, and the values here are labels.
"""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from labelguard.errors import ConnectorError
from labelguard_connectors.label_studio.answers import elements, members, number

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
        if not re.fullmatch(r"[!-~]+", key):
            raise ConnectorError(f"{self._where}: the API key has characters that no key has")
        # A redirect is an error: it would carry the key elsewhere, and make a POST a GET.
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_S, auth=_auth(url, key))

    def project(self, project: int) -> Mapping[str, Any]:
        """Title, questions, counts of a project."""
        found = self._read(f"/api/projects/{project}/", {})
        return members(found, f"{self._where}: a project")

    def tasks(
        self, project: int, filters: Sequence[Mapping[str, Any]], order: str, size: int, fields: str
    ) -> list[Any]:
        """The first `size` tasks of a project that pass all filters of the data manager.

        `fields` is `task_only`, or `all` for annotations too, the cancelled ones among them.
        """
        query = {"filters": {"conjunction": "and", "items": filters}, "ordering": [order]}
        asked = {
            "project": project,
            "query": json.dumps(query),
            "page": 1,
            "page_size": size,
            "fields": fields,
            "resolve_uri": "false",  # texts as they are, as webhooks tell them
        }
        found = members(self._read("/api/tasks/", asked), f"{self._where}: tasks")
        return elements(found.get("tasks"), f"{self._where}: tasks")

    def create(self, title: str, config: str) -> int:
        """A new project's id."""
        made = self._write("POST", "/api/projects/", {"title": title, "label_config": config})
        return number(members(made, f"{self._where}: a project").get("id"), f"{self._where}: id")

    def fill(self, project: int, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Add tasks to a project."""
        self._write("POST", f"/api/projects/{project}/import", tasks)

    def remove(self, project: int) -> None:
        """Delete a project."""
        self._write("DELETE", f"/api/projects/{project}/", None)

    def _read(self, path: str, asked: Mapping[str, Any]) -> Any:
        return self._said(_passing, lambda: self._http.get(path, params=asked))

    def _write(self, method: str, path: str, body: Any) -> Any:
        return self._said(_not_taken, lambda: self._http.request(method, path, json=body))

    def _said(
        self, again: Callable[[BaseException], bool], ask: Callable[[], httpx.Response]
    ) -> Any:
        """The answer's JSON. Errors are in our words: theirs hold bodies and whole addresses."""
        trying = Retrying(
            retry=retry_if_exception(again),
            wait=_wait,
            stop=stop_after_attempt(_TRIES),
            reraise=True,
        )
        try:
            answer = trying(lambda: ask().raise_for_status())
            return answer.json() if answer.content else None
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
        except _LOST as error:
            raise ConnectorError(
                f"{self._where} cannot be reached ({type(error).__name__}); check url, and whether "
                "it runs"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
            status = 0
        if status in _CHECK:
            raise ConnectorError(f"{self._where} {_CHECK[status]}")
        if status < 400:
            raise ConnectorError(
                f"{self._where} answers something else than Label Studio does; check url"
            )
        raise ConnectorError(f"{self._where} answers with status {status}; try again later")


class _PersonalToken(httpx.Auth):
    """A personal access token is exchanged for one of some minutes, again and again."""

    requires_response_body = True

    def __init__(self, url: str, key: str) -> None:
        self._refresh = httpx.Request("POST", f"{url}/api/token/refresh/", json={"refresh": key})
        self._access = ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._access:
            request.headers["Authorization"] = f"Bearer {self._access}"
            answer = yield request
            if answer.status_code != httpx.codes.UNAUTHORIZED:
                return
        answer = (yield self._refresh).raise_for_status()
        self._access = str(members(answer.json(), "Label Studio: a token").get("access"))
        request.headers["Authorization"] = f"Bearer {self._access}"
        yield request


class _LegacyToken(httpx.Auth):
    """A legacy token is sent as it is."""

    def __init__(self, key: str) -> None:
        self._key = key

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = f"Token {self._key}"
        yield request


def _auth(url: str, key: str) -> httpx.Auth:
    """Personal access tokens are JSON Web Tokens, of three parts; legacy ones are not."""
    return _PersonalToken(url, key) if key.count(".") == 2 else _LegacyToken(key)


def _passing(error: BaseException) -> bool:
    """Whether it may be over in a moment."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    return isinstance(error, _LOST)


def _not_taken(error: BaseException) -> bool:
    """Whether the server surely did nothing of what it was told."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (429, 503)
    return isinstance(error, _NOT_SENT)


_backoff = wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT_S)


def _wait(state: RetryCallState) -> float:
    """As long as the server asks for (Retry-After), within limits; else longer each time."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, httpx.HTTPStatusError):
        asked = _seconds(error.response.headers.get("Retry-After", ""))
        if asked is not None:
            return min(max(asked, 0.0), _LONGEST_WAIT_S)
    return _backoff(state)


def _seconds(text: str) -> float | None:
    """Retry-After: seconds, or a date."""
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        return float(text)
    date = email.utils.parsedate_tz(text)
    try:
        return None if date is None else email.utils.mktime_tz(date) - time.time()
    except (ValueError, OverflowError):
        return None
