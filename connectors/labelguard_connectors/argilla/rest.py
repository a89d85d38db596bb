"""Argilla's REST interface, and all records of a data set by it, while others work on it.

Argilla pages by numbers of records in the order of their creation. Records may be as old as one
another, in any order, and a deletion moves all later ones up. So every page begins with a record
that is older than the newest one read: what lies before it was read, and nothing can be missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

from labelguard.errors import ConnectorError, GoneFromTool
from labelguard_connectors.argilla.answers import ArgillaQuestion, DatasetName, Record, Response
from labelguard_connectors.http import HttpClient
from labelguard_connectors.payloads import Count, Payload, Text, TextOrNone, Time, Uuid

HINTS = {
    401: "the API key is not accepted; check it",
    403: "the API key's user may not do this; it must be an owner, or an admin of the workspace",
    404: "not found; check url, workspace and dataset",
    409: "it exists already; choose another name",
    422: "Argilla does not accept what was sent",
}
_API = "/api/v1"
READY = "ready"
# Records per page; Argilla gives at most 1,000.
LIMIT = 500


class _Workspace(Payload):
    id: Uuid
    name: Text


class Dataset(_Workspace):
    """A data set, as Argilla describes it."""

    workspace_id: Uuid
    status: Text = READY
    guidelines: TextOrNone = None


T = TypeVar("T")
_Named = TypeVar("_Named", bound=_Workspace)


class Listing(Payload, Generic[T]):
    """Items of one kind."""

    items: list[T]


class Progress(Payload):
    """Counts of a data set's records, and of those that have all their responses."""

    total: Count
    completed: Count = 0


class ListedResponse(Response):
    """A response in a list of records."""

    user_id: Uuid


class ListedRecord(Record):
    """A record in a list, with all its responses."""

    inserted_at: Time
    responses: list[ListedResponse]


class ArgillaClient(HttpClient):
    """A connection to one server, by the API key of one user; closed on leaving."""

    def __init__(self, connector: str, url: str, api_key: str) -> None:
        headers = {"X-Argilla-Api-Key": api_key}
        where = f"connector {connector}"
        super().__init__("Argilla", where, url, HINTS, lambda renew: headers)

    def dataset(self, name: DatasetName) -> Dataset:
        """Return the data set of this name or id. Raises `ConnectorError` where there is none."""
        if name.id:
            return self.get(Dataset, f"{_API}/datasets/{name.id}")
        workspace = self.workspace(name.workspace)
        return self._find_by_name(self.datasets(workspace), "dataset", name.dataset)

    def datasets(self, workspace: str) -> list[Dataset]:
        """Return the data sets of a workspace (id), drafts too."""
        return self.get(Listing[Dataset], f"{_API}/me/datasets", workspace_id=workspace).items

    def workspace(self, name: str | None) -> str:
        """Return the id of a workspace. Raises `ConnectorError` where there is none."""
        workspaces = self.get(Listing[_Workspace], f"{_API}/me/workspaces").items
        return self._find_by_name(workspaces, "workspace", name).id

    def _find_by_name(self, items: Sequence[_Named], noun: str, name: str | None) -> _Named:
        for item in items:
            if item.name == name:
                return item
        raise GoneFromTool(
            f"{self.where}: Argilla has no {noun} of that name that the API key's user may see; "
            f"check {noun}"
        )

    def questions(self, dataset: str) -> list[ArgillaQuestion]:
        """Return the questions of a data set (id)."""
        return self.get(Listing[ArgillaQuestion], f"{_API}/datasets/{dataset}/questions").items

    def progress(self, dataset: str) -> Progress:
        """Return how much of a data set (id) is answered."""
        return self.get(Progress, f"{_API}/datasets/{dataset}/progress")

    def count_records(self, dataset: str) -> int:
        """Return the number of records. Raises `ConnectorError` for who may not see responses."""
        path = f"{_API}/datasets/{dataset}/records"
        return self.get(Progress, path, include="responses", limit=1).total

    def records(self, dataset: str, offset: int, limit: int) -> list[ListedRecord]:
        """Return a page of records with their responses, in the order of their creation."""
        path = f"{_API}/datasets/{dataset}/records"
        page = self.get(
            Listing[ListedRecord], path, include="responses", offset=offset, limit=limit
        ).items
        if any(a.inserted_at.microseconds > b.inserted_at.microseconds for a, b in pairwise(page)):
            raise ConnectorError(
                f"{self.where}: GET {path}: items: expected records in the order of inserted_at"
            )
        return page


@dataclass
class _Progressed:
    """All records older than `newest` were read, and `ids` of those that are as old as it."""

    newest: int = -1
    ids: set[str] = field(default_factory=set)

    def select_unread(self, page: Sequence[ListedRecord]) -> list[ListedRecord]:
        """Return those of a page that were not read yet."""
        newest = self.newest
        later = (record for record in page if record.inserted_at.microseconds >= newest)
        fresh = [record for record in later if record.id not in self.ids]
        if page and (last := page[-1].inserted_at.microseconds) > self.newest:
            self.newest, self.ids = last, set()
        self.ids |= {r.id for r in fresh if r.inserted_at.microseconds == self.newest}
        return fresh


def list_pages(
    client: ArgillaClient, dataset: str, limit: int = LIMIT
) -> Iterator[list[ListedRecord]]:
    """Yield every record with all its responses, and without suggestions; each once.

    Records that come or go meanwhile may be there or not. Raises `ConnectorError`.
    """
    read, offset, back = _Progressed(), 0, 1
    while True:
        page = client.records(dataset, offset, limit)
        # No record lies between, where a page begins with what was read.
        if offset and not (page and page[0].inserted_at.microseconds < read.newest):
            offset, back = max(0, offset - back), 2 * back
            continue
        back = 1
        fresh = read.select_unread(page)
        yield fresh
        if len(page) < limit:
            return
        older = sum(record.inserted_at.microseconds < read.newest for record in page)
        following = max(0, offset + older - 1)
        if following <= offset and not fresh:
            raise ConnectorError(
                f"data set {dataset} of Argilla: over {limit - 2} records were created in the same "
                "microsecond, and cannot be read page by page"
            )
        offset = following
