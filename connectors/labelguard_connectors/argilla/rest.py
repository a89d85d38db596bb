"""Argilla's REST interface, and all records of a data set by it, while others work on it.

Argilla pages by numbers of records in the order of their creation. Records may be as old as one
another, in any order, and a deletion moves all later ones up. So every page begins with a record
that is older than the newest one read: what lies before it was read, and nothing can be missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from labelguard.errors import ConnectorError
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


LIMIT = 500
"""Records per page; Argilla gives at most 1,000."""


@dataclass(frozen=True)
class _Record:
    told: Value
    created: int
    id: str


@dataclass
class _Read:
    """All records older than `newest` were read, and `ids` of those that are as old as it."""

    newest: int = -1
    ids: set[str] = field(default_factory=set)

    def take(self, page: Sequence[_Record]) -> list[Value]:
        """Those of a page that were not read yet."""
        fresh = [r for r in page if r.created > self.newest or self._is_missing(r)]
        if page and page[-1].created > self.newest:
            self.newest, self.ids = page[-1].created, set()
        self.ids |= {r.id for r in fresh if r.created == self.newest}
        return [r.told for r in fresh]

    def joins(self, page: Sequence[_Record]) -> bool:
        """Whether a page begins with what was read, so that no record lies between."""
        return bool(page) and page[0].created < self.newest

    def _is_missing(self, record: _Record) -> bool:
        return record.created == self.newest and record.id not in self.ids


def pages(rest: Rest, dataset: str, limit: int = LIMIT) -> Iterator[list[Value]]:
    """Every record with all its responses, and without suggestions; each once.

    Records that come or go meanwhile may be there or not. Raises `ConnectorError`.
    """
    read, offset, back = _Read(), 0, 1
    while True:
        page = _page(rest, dataset, offset, limit)
        if offset and not read.joins(page):
            offset, back = max(0, offset - back), 2 * back
            continue
        back = 1
        fresh = read.take(page)
        yield fresh
        if len(page) < limit:
            return
        older = sum(record.created < read.newest for record in page)
        following = max(0, offset + older - 1)
        if following <= offset and not fresh:
            raise ConnectorError(
                f"data set {dataset} of Argilla: over {limit - 2} records were created in the same "
                "microsecond, and cannot be read page by page"
            )
        offset = following


def _page(rest: Rest, dataset: str, offset: int, limit: int) -> list[_Record]:
    told = rest.get(f"/datasets/{dataset}/records", include="responses", offset=offset, limit=limit)
    page = [
        _Record(record, record["inserted_at"].time(), record["id"].uuid())
        for record in told["items"].elements()
    ]
    if any(one.created > other.created for one, other in pairwise(page)):
        raise told["items"].unlike("records in the order of inserted_at")
    return page
