"""All records of a data set, page by page, while others work on it.

Argilla pages by numbers of records in the order of their creation. Records may be as old as one
another, in any order, and a deletion moves all later ones up. So every page begins with a record
that is older than the newest one read: what lies before it was read, and nothing can be missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from labelguard.errors import ConnectorError
from labelguard_connectors.argilla.rest import Rest
from labelguard_connectors.values import Value

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
