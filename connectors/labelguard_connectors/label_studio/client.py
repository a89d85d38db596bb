"""Label Studio's REST interface."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from labelguard.errors import ConnectorError
from labelguard_connectors.http import Http
from labelguard_connectors.values import Value

_HINTS = {
    401: "the API key is not accepted; check it, and whether it has expired",
    403: "the API key's user may not do this; ask for a role that may see the whole project",
    404: "there is no such project; check url and project in labelguard.toml",
}


class Client(Http):
    """One server, with one key."""

    def __init__(self, url: str, key: str) -> None:
        where = f"Label Studio at {urlsplit(url).netloc}"
        if not re.fullmatch(r"[!-~]+", key):
            raise ConnectorError(f"{where}: the API key has characters that no key has")
        self._key, self._access = key, ""
        super().__init__("Label Studio", where, url, _HINTS, self._credentials)

    def project(self, project: int) -> Mapping[str, Any]:
        """Title, questions, counts of a project."""
        found = self.send("GET", f"/api/projects/{project}/", repeatable=True)
        return Value(f"{self.where}: a project", found).object()

    def tasks(
        self, project: int, filters: Sequence[Mapping[str, Any]], order: str, size: int, fields: str
    ) -> list[Any]:
        """The first `size` tasks of a project that pass all filters of the data manager.

        `fields` is `task_only`, or `all` for annotations too, the cancelled ones among them.
        """
        view = {"filters": {"conjunction": "and", "items": filters}, "ordering": [order]}
        query: dict[str, str | int] = {
            "project": project,
            "query": json.dumps(view),
            "page": 1,
            "page_size": size,
            "fields": fields,
            "resolve_uri": "false",  # texts as they are, as webhooks tell them
        }
        found = self.send("GET", "/api/tasks/", query=query, repeatable=True)
        return [task.value for task in Value(self.where, found)["tasks"].elements()]

    def create(self, title: str, config: str) -> int:
        """A new project's id."""
        body = {"title": title, "label_config": config}
        made = self.send("POST", "/api/projects/", body=body, repeatable=False)
        return Value(f"{self.where}: a project", made)["id"].number()

    def fill(self, project: int, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Add tasks to a project."""
        self.send("POST", f"/api/projects/{project}/import", body=tasks, repeatable=False)

    def remove(self, project: int) -> None:
        """Delete a project."""
        self.send("DELETE", f"/api/projects/{project}/", repeatable=False)

    def _credentials(self, renew: bool) -> Mapping[str, str]:
        """A legacy token is sent as it is; a personal one is exchanged for one of some minutes."""
        if self._key.count(".") != 2:  # personal ones are JSON Web Tokens, of three parts
            return {"Authorization": f"Token {self._key}"}
        if renew or not self._access:
            with Http(self.tool, self.where, self.url, _HINTS, lambda renew: {}) as exchange:
                body = {"refresh": self._key}
                found = exchange.send("POST", "/api/token/refresh/", body=body, repeatable=True)
            self._access = Value(f"{self.where}: a token", found)["access"].text()
        return {"Authorization": f"Bearer {self._access}"}
