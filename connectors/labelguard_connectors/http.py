"""REST interfaces of tools: patient with a busy server for a while, and silent about what it said.

Spoken to directly: the SDKs of both tools print values that they do not expect, and the values here
are labels. An error has the path and the status, and nothing of keys, of what was sent or answered.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import httpx
import tenacity

from labelguard.errors import ConnectorError, GoneFromTool
from labelguard.text import pluralize
from labelguard_connectors.payloads import parse

T = TypeVar("T")
TRIES = 5
# The most that one request may take, with all its tries and until its last byte.
SECONDS = 60.0
# The most that everything that is read of a tool at once may take.
READ_SECONDS = 4 * 3_600.0
_BUSY, _UNAUTHORIZED, _GONE = 429, 401, (404, 410)


class _TryAgain(Exception):
    """A failure that may pass; `after` is how long the server asks to wait, in seconds."""

    def __init__(self, problem: str, after: float | None = None) -> None:
        super().__init__(problem)
        self.after = after


@dataclass
class HttpClient:
    """A connection to one server of the tool `tool`; closed on leaving.

    `where` begins every message, `hints` say what to check by the status of an answer. `headers`
    gives those that prove who asks, anew (True) after the server refused them once.

    It only reads: it asks again where the connection breaks, or the server is busy (429) or broken
    (5xx). Every method raises `ConnectorError`.
    """

    tool: str
    where: str
    url: str
    hints: Mapping[int, str]
    headers: Callable[[bool], Mapping[str, str]] = field(repr=False)
    _ends: float = field(default_factory=lambda: time.monotonic() + READ_SECONDS)

    def __post_init__(self) -> None:
        try:
            # A redirect is an error: it would carry the key elsewhere, and make a POST a GET.
            self._client = httpx.Client(base_url=self.url)
        except httpx.InvalidURL:
            raise ConnectorError(f"{self.where}: this is no url; check it") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, model: type[T], path: str, **query: str | int) -> T:
        """Return what is there."""
        return parse(model, self.send("GET", path, query=query), f"{self.where}: GET {path}")

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
    ) -> Any:
        """Return the JSON that is answered; None where nothing is."""
        what = f"{self.where}: {method} {path}"
        now = time.monotonic()
        ends = min(now + SECONDS, self._ends)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TryAgain),
            stop=tenacity.stop_after_attempt(TRIES) | tenacity.stop_before_delay(ends - now),
            wait=_choose_wait_seconds,
            reraise=True,
        )

        def attempt(headers: Mapping[str, str]) -> tuple[int, bytes]:
            """Return status and body; late is late, however slowly bytes come."""
            rest = max(ends - time.monotonic(), 0.001)
            request = self._client.build_request(
                method, path, params=query, json=body, headers=headers, timeout=rest
            )
            try:
                with contextlib.closing(self._client.send(request, stream=True)) as response:
                    pieces = []
                    for piece in response.iter_bytes():
                        pieces.append(piece)
                        if time.monotonic() > ends:
                            raise httpx.ReadTimeout("late")
            except httpx.TransportError as error:
                raise _TryAgain(f"cannot be reached ({_describe_cause(error)})") from None
            status = response.status_code
            if status == _BUSY or status >= 500:
                seconds = _parse_retry_after(response.headers.get("Retry-After", ""))
                raise _TryAgain(f"HTTP {status}", seconds)
            return status, b"".join(pieces)

        def authenticate() -> tuple[int, bytes]:
            """Return status and body, of a second attempt where the server refused the first."""
            headers = self.headers(False)
            status, data = attempt(headers)
            if status == _UNAUTHORIZED and (renewed := self.headers(True)) != headers:
                status, data = attempt(renewed)
            return status, data

        try:
            status, data = retrying(authenticate)
        except _TryAgain as error:
            tries, seconds = retrying.statistics["attempt_number"], time.monotonic() - now
            raise ConnectorError(
                f"{what}: {error}; tried {pluralize(tries, 'time')} in {seconds:.0f} seconds; "
                f"check url, and whether {self.tool} runs"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise ConnectorError(f"{what}: {type(error).__name__}; check url") from None
        if not 200 <= status < 300:
            hint = self.hints.get(status, "check url" if status < 500 else "try again later")
            kind = GoneFromTool if status in _GONE else ConnectorError
            raise kind(f"{what}: HTTP {status}: {hint}")
        try:
            return json.loads(data) if data else None
        except (ValueError, RecursionError):
            raise ConnectorError(f"{what}: expected JSON; is url that of {self.tool}?") from None


def _describe_cause(error: BaseException) -> str:
    """Return why there is no connection, in words of ours: those of others may hold a URL."""
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "certificate not trusted: set SSL_CERT_FILE to that of your authority"
        if isinstance(cause, socket.gaierror):
            return "host name not known"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


backoff = tenacity.wait_random_exponential(multiplier=0.5, max=10)


def _choose_wait_seconds(state: tenacity.RetryCallState) -> float:
    """Wait as long as the server asks for (Retry-After); else longer from try to try."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _TryAgain) and error.after is not None:
        return max(error.after, 0.0)
    return backoff(state)


def _parse_retry_after(text: str) -> float | None:
    """Return how long a Retry-After asks to wait: seconds, or a date."""
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        return float(text)
    date = email.utils.parsedate_tz(text)
    try:
        return None if date is None else email.utils.mktime_tz(date) - time.time()
    except (ValueError, OverflowError):
        return None
