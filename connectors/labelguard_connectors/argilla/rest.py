"""Argilla's REST interface."""

from __future__ import annotations

from typing import Any

from labelguard_connectors.http import Http
from labelguard_connectors.values import Value

_HINTS = {
    401: "the API key is not accepted; check it",
    403: "the API key's user may not do this; it must be an owner, or an admin of the workspace",
    404: "there is no such thing; check url, workspace and dataset",
    409: "it is there already; take another name",
    422: "Argilla does not accept what was sent",
}


class Rest(Http):
    """A connection to one server, by the API key of one user; closed on leaving."""

    def __init__(self, connector: str, url: str, api_key: str) -> None:
        headers = {"X-Argilla-Api-Key": api_key}
        super().__init__("Argilla", f"connector {connector}", url, _HINTS, lambda renew: headers)

    def get(self, path: str, **query: str | int) -> Value:
        """Return what is there."""
        return self._request("GET", path, query=query, repeatable=True)

    def put(self, path: str, body: Any = None) -> Value:
        """Make it so; once or twice is the same."""
        return self._request("PUT", path, body=body, repeatable=True)

    def post(self, path: str, body: Any) -> Value:
        """Make something new."""
        return self._request("POST", path, body=body, repeatable=False)

    def delete(self, path: str) -> None:
        """Remove it."""
        self._request("DELETE", path, repeatable=False)

    def _request(self, method: str, path: str, **how: Any) -> Value:
        answer = self.send(method, f"/api/v1{path}", **how)
        return Value(f"{self.where}: {method} {path}", answer)
