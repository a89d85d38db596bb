"""Label Studio's REST interface."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from labelguard.errors import ConnectorError
from labelguard_connectors.http import Http
from labelguard_connectors.label_studio.answers import elements, members, number

_HINTS = {
    401: "the API key is not accepted; check it, and whether it has expired",
    403: "the API key's user may not do this; ask for a role that may see the whole project",
    404: "there is no such project; check url and project in labelguard.toml",
}


class Client:
    """One server, with one key. Every method raises `ConnectorError`, as `Http` does."""

    def __init__(self, url: str, key: str) -> None:
        self._where = f"Label Studio at {urlsplit(url).netloc}"
        if not re.fullmatch(r"[!-~]+", key):
            raise ConnectorError(f"{self._where}: the API key has characters that no key has")
        self._key, self._access = key, ""
        self._http = Http("Label Studio", self._where, url, _HINTS, self._headers)

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
        return self._http.send("GET", path, query=asked, repeatable=True)

    def _write(self, method: str, path: str, body: Any) -> Any:
        return self._http.send(method, path, body=body, repeatable=False)

    def _headers(self, renew: bool) -> Mapping[str, str]:
        """A legacy token is sent as it is; a personal one is exchanged for one of some minutes."""
        if self._key.count(".") != 2:  # personal ones are JSON Web Tokens, of three parts
            return {"Authorization": f"Token {self._key}"}
        if renew or not self._access:
            exchange = Http("Label Studio", self._where, self._http.url, _HINTS, lambda renew: {})
            body = {"refresh": self._key}
            found = exchange.send("POST", "/api/token/refresh/", body=body, repeatable=True)
            self._access = str(members(found, f"{self._where}: a token").get("access"))
        return {"Authorization": f"Bearer {self._access}"}
