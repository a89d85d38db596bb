"""The protocol between an annotation tool and a project: answers, pages of them, connectors.

A connector speaks to one tool. It tells every answer as a task with this one answer in the tool's
own export format, which `labelguard.inputs.formats` reads like a file; and nothing of the person
but the id that the tool has for the labeler. Connectors come by the entry points
`labelguard.connectors`, each a callable that takes `Settings`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

from labelguard import clock, extras
from labelguard.configuration import project_file
from labelguard.configuration.loader import validate_settings
from labelguard.configuration.project_file import FILE
from labelguard.errors import ConnectorError, LabelguardError
from labelguard.storage.files import read_mounted
from labelguard.text import Progress

DOOR = "labelguard.connectors"

T = TypeVar("T")

# Why an answer is not taken that would win over all that is said of it until its time has come.
AHEAD = "its time is more than a day ahead of this machine's clock: find out which clock is wrong"
_AHEAD = timedelta(days=1) // timedelta(microseconds=1)


@dataclass(frozen=True)
class Answer:
    """One state of one answer, as a tool told it. Its repr shows nothing.

    `record` is the tool's id of the answer (an annotation, a response), which it never gives twice.
    `version` is when this state came to be by the tool's clock, in µs since 1970 UTC: of several
    states of a record, the one with the greatest counts. `labeler` is the tool's id of who
    answered. `body` is a task with this one answer, as JSON in the tool's export format; it is
    empty where the answer was deleted, which no later state undoes. `left_out` is why no release
    will count it (`SKIP`, `DRAFT`, … of `labelguard.text`), for whoever pulls; it is not stored.
    """

    record: str
    version: int
    labeler: str = ""
    body: str = field(default="", repr=False)
    left_out: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return "Answer(…)"

    @property
    def is_deleted(self) -> bool:
        """True if the answer is gone from the tool."""
        return not self.body

    @property
    def is_ahead(self) -> bool:
        """True if it is dated more than a day from now, by a clock that is wrong."""
        return self.version > clock.parse_time(clock.now()).timestamp() * 1_000_000 + _AHEAD


@dataclass(frozen=True)
class Unreadable:
    """An answer in a tool that is no `Answer`: its id there, and `why`, with nothing of it."""

    record: str
    why: str


@dataclass(frozen=True)
class Page:
    """Some of a tool's answers, and from where to go on once they are stored.

    `cursor` is the connector's own; the last page's lets the next pull read only what is new since.
    `unreadable` answers become dead letters and stop nothing; what was known of them stays.
    """

    answers: Sequence[Answer]
    cursor: str
    unreadable: Sequence[Unreadable] = ()


@dataclass(frozen=True)
class Settings:
    """`[connectors.NAME]` of labelguard.toml.

    `kind` is the connector (by default its name), `source` whose labelers these are (by default
    the name too), `columns` and `question` are how its tasks are read (as for `privatize`), and
    `options` what is the connector's own: url, project, dataset, ….
    """

    name: str
    kind: str
    source: str
    columns: Mapping[str, str] = field(default_factory=dict)
    question: str | None = None
    hook: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_table(cls, name: str, table: Mapping[str, Any]) -> Settings:
        """From the table in labelguard.toml. Raises `ConnectorError` for values of other types."""
        own = validate_settings(
            project_file.ConnectorTable, table, FILE, at=("connectors", name), error=ConnectorError
        )
        return cls(
            name,
            own.kind or name,
            own.source or name,
            own.columns,
            own.question,
            own.hook.model_dump(exclude_none=True),
            own.model_extra or {},
        )

    @property
    def reading(self) -> str:
        """The columns and the question that it reads, as one text."""
        return json.dumps(
            {"columns": dict(self.columns), "question": self.question}, sort_keys=True
        )

    def parse_options(self, kind: type[T]) -> T:
        """Return the connector's own options as a model, or `ConnectorError` for what does not fit
        it.
        """
        at = ("connectors", self.name)
        return validate_settings(kind, self.options, FILE, at=at, error=ConnectorError)


class Connector(Protocol):
    """One project or data set of one annotation tool. Every method raises `ConnectorError`, which
    names the field that was unexpected, and never what is in it.

    A connector may have two more methods. `check_access` raises where a key or a package is
    missing, and never speaks to the tool. `push(release, name, progress)` publishes a release's
    directory as a new data set `name`, without labelers, and returns where it is.
    """

    @property
    def format(self) -> str:
        """The format of bodies, one of `labelguard.inputs.formats`."""
        ...

    def about(self) -> Mapping[str, str]:
        """Return its name there, its questions and how many tasks there are, for `connect
        check`.
        """
        ...

    def parse_event(self, event: Any) -> Sequence[Answer]:
        """Return the answers in a webhook's body (parsed JSON); none, if it is about others.

        Never speaks to the tool.
        """
        ...

    def pull(self, cursor: str = "") -> Iterator[Page]:
        """Return all answers that there are now or, with a `cursor`, at least those that changed
        since.
        """
        ...


def list_connector_kinds() -> list[str]:
    """Return the connectors that are installed."""
    return extras.list_entry_points(DOOR)


def open_connector(settings: Settings) -> Connector:
    """Return the connector of these settings. Raises `ConnectorError` for an unknown kind."""
    entry_point = extras.find_entry_point(DOOR, settings.kind)
    if entry_point is None:
        raise ConnectorError(
            f"[connectors.{settings.name}]: no connector is called {settings.kind!r}; set kind to "
            f"one of {', '.join(list_connector_kinds())}"
        )
    loaded: Connector = entry_point.load()(settings)
    return loaded


def read_settings(tables: Mapping[str, Any], name: str) -> Settings:
    """Return the settings of connector `name` among `[connectors]`. Raises `ConnectorError`."""
    table = tables.get(name)
    if not isinstance(table, Mapping):
        names = f"found: {', '.join(sorted(tables))}" if tables else "see docs/connectors.md"
        raise ConnectorError(f"labelguard.toml has no [connectors.{name}]; {names}")
    return Settings.from_table(name, table)


def check_access(settings: Settings) -> None:
    """Raise `ConnectorError` where a connector says, without its tool, that no pull can begin."""
    if check := getattr(open_connector(settings), "check_access", None):
        check()


def open_push(settings: Settings) -> Callable[[Path, str, Progress], str]:
    """Return the method `push` of a connector. Raises `ConnectorError` for one that has none."""
    push: Callable[[Path, str, Progress], str] | None = getattr(
        open_connector(settings), "push", None
    )
    if push is None:
        raise ConnectorError(
            f"connector {settings.name} ({settings.kind}) takes no releases: publish to the Hub "
            "(hf:ORG/NAME) or to Argilla, and leave push out of [hook.release]"
        )
    return push


def read_all_settings(tables: Mapping[str, Any]) -> dict[str, Settings]:
    """Return the settings of all `[connectors]` by name. Raises `ConnectorError`."""
    return {name: read_settings(tables, name) for name in tables}


_SERVICE = "labelguard"


def read_credential(connector: str, kind: str) -> str:
    """Return a secret of a connector: `api_key`, or `hook_secret` (several, separated by blanks).

    Looked for in LABELGUARD_<CONNECTOR>_<KIND>, in the file that LABELGUARD_<CONNECTOR>_<KIND>_FILE
    names, and in the keyring under service `labelguard` and user `<connector>/<kind>`. Raises
    `ConnectorError` if it is nowhere.
    """
    own = credential_variable(connector, kind)
    if value := read_secret(own, ConnectorError):
        return value
    if name := os.environ.get(f"{own}_FILE"):
        raise ConnectorError(f"connector {connector}: the file of its {kind} is empty: {name}")
    if find_spec("keyring"):
        import keyring

        if value := (keyring.get_password(_SERVICE, f"{connector}/{kind}") or "").strip():
            return value
    raise ConnectorError(
        f"connector {connector}: no {kind}; set it in {own}, in a file named by "
        f"{own}_FILE, or in the keyring (keyring set {_SERVICE} {connector}/{kind})"
    )


def read_secret(name: str, kind: type[LabelguardError]) -> str:
    """Return the secret in an environment variable, or in the file that NAME_FILE names.

    Blank if there is none. Raises `kind` for a file that is not safe or cannot be read.
    """
    secret, file = os.environ.get(name, "").strip(), os.environ.get(f"{name}_FILE")
    if secret or not file:
        return secret
    return read_mounted(Path(file), kind).decode(errors="replace").strip()


def credential_variable(connector: str, kind: str) -> str:
    """Return the environment variable of such a secret."""
    return "LABELGUARD_" + re.sub(r"\W", "_", f"{connector}_{kind}").upper()
