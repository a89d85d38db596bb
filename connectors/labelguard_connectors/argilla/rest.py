"""Argilla's REST interface."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from labelguard_connectors.argilla.told import Told
from labelguard_connectors.http import Http

_HINTS = {
    401: "the API key is not accepted; check it",
    403: "the API key's user may not do this; it must be an owner, or an admin of the workspace",
    404: "there is no such thing; check url, workspace and dataset",
    409: "it is there already; take another name",
    422: "Argilla does not accept what was sent",
}


class Rest:
    """A connection to one server, by the API key of one user; closed on leaving.

    Every method raises `ConnectorError`, as `Http` does.
    """

    def __init__(self, connector: str, url: str, api_key: str) -> None:
        headers = {"X-Argilla-Api-Key": api_key}
        self._where = f"connector {connector}"
        self._http = Http("Argilla", self._where, url, _HINTS, lambda renew: headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.__exit__(kind, error, traceback)

    def get(self, path: str, **query: str | int) -> Told:
        """Return what is there."""
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

    def _told(self, method: str, path: str, **how: Any) -> Told:
        found = self._http.send(method, f"/api/v1{path}", **how)
        return Told(f"{self._where}: {method} {path}", found)
