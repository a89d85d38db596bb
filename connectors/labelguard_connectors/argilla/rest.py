"""Argilla's REST interface: requests, tried again, and errors without what was sent or told."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx
import tenacity

from labelguard.errors import ConnectorError
from labelguard_connectors.argilla.told import Told

_TRIES = 5
_LONGEST_WAIT = 60.0
_TIMEOUT = httpx.Timeout(60, connect=10)
_BUSY = 429
_HINTS = {
    401: "the API key is not accepted; check it",
    403: "the API key's user may not do this; it must be an owner, or an admin of the workspace",
    404: "there is no such thing; check url, workspace and dataset",
    409: "it is there already; take another name",
    422: "Argilla does not accept what was sent",
}


class _TryAgain(Exception):
    """A failure that may pass; `after` is how long the server asks to wait, in seconds."""

    def __init__(self, problem: str, after: float | None = None) -> None:
        super().__init__(problem)
        self.after = after


class Rest:
    """A connection to one server, by the API key of one user; closed on leaving.

    Requests whose repetition changes nothing are tried again after failures that may pass; others
    only where the server did not do them. Raises `ConnectorError`, with the path and the status,
    but nothing of keys, of what was sent and of what was answered.
    """

    def __init__(self, connector: str, url: str, api_key: str) -> None:
        self._connector = connector
        headers = {"X-Argilla-Api-Key": api_key}
        try:
            self._client = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT)
        except (UnicodeEncodeError, httpx.InvalidURL):
            raise ConnectorError(
                f"connector {connector}: url or api_key is none; check them"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def get(self, path: str, **query: str | int) -> Told:
        """What is there."""
        return self._told("GET", path, query=query, repeatable=True)

    def put(self, path: str, body: Any = None) -> Told:
        """Make it so; once or twice is the same."""
        return self._told("PUT", path, body=body, repeatable=True)

    def post(self, path: str, body: Any) -> Told:
        """Make something new."""
        return self._told("POST", path, body=body, repeatable=False)

    def delete(self, path: str) -> None:
        """Remove it."""
        self._told("DELETE", path, repeatable=False)

    def _told(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
    ) -> Told:
        what = f"connector {self._connector}: {method} {path}"
        request = self._client.build_request(method, f"/api/v1{path}", params=query, json=body)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TryAgain),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=_wait,
            reraise=True,
        )
        try:
            response: httpx.Response = retrying(self._send, request, repeatable)
        except _TryAgain as error:
            raise ConnectorError(f"{what}: {error}; tried {_TRIES} times") from None
        except httpx.HTTPError as error:
            raise ConnectorError(f"{what}: {type(error).__name__}; check url") from None
        if not response.is_success:
            hint = _HINTS.get(response.status_code, "check url")
            raise ConnectorError(f"{what}: HTTP {response.status_code}: {hint}")
        try:
            return Told(what, response.json())
        except (ValueError, RecursionError):
            raise ConnectorError(f"{what}: expected JSON; is url that of Argilla?") from None

    def _send(self, request: httpx.Request, repeatable: bool) -> httpx.Response:
        try:
            response = self._client.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise _TryAgain("no connection; check url") from None
        except httpx.TransportError as error:
            if not repeatable:
                raise
            raise _TryAgain(type(error).__name__) from None
        failed = response.is_server_error and repeatable
        if response.status_code == _BUSY or failed:
            after = _seconds(response.headers.get("Retry-After"))
            raise _TryAgain(f"HTTP {response.status_code}", after)
        return response


_backoff = tenacity.wait_exponential(multiplier=0.5, max=10) + tenacity.wait_random(0, 0.5)


def _wait(state: tenacity.RetryCallState) -> float:
    """As long as the server asks for, or else longer from try to try."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _TryAgain) and error.after is not None:
        return error.after
    return _backoff(state)


def _seconds(header: str | None) -> float | None:
    """How long a Retry-After asks to wait, at most a minute; dates are not waited for."""
    if header is None or not header.isascii() or not header.isdigit():
        return None
    return min(float(header[:9]), _LONGEST_WAIT)
