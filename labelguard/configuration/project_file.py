"""labelguard.toml: what a project's people may set, and nothing secret."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from labelguard.configuration.checking import Part, Text, Wrong, checked, secretive
from labelguard.configuration.reading import parse_toml
from labelguard.errors import LabelguardError, ProjectError
from labelguard.options import BadRows, Exhausted

__all__ = [
    "FILE",
    "About",
    "Connector",
    "Delivery",
    "Hook",
    "Ingest",
    "Input",
    "ProjectFile",
    "read",
]

FILE = "labelguard.toml"


def _days(text: str) -> str:
    if not re.fullmatch(r"(0|[1-9][0-9]{0,4})d", text):
        raise ValueError('expected a number of days, like "90d"')
    return text


def _when(text: str) -> str:
    if not re.fullmatch(r"manual|completed|daily|every:[1-9][0-9]{0,8}", text):
        raise ValueError("expected manual, every:500, completed or daily")
    return text


def _header(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text):
        raise ValueError("expected the name of a header")
    return text


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(
            'expected an address or a network, like "192.0.2.7" or "10.0.0.0/8"'
        ) from None
    return text


Header = Annotated[str, AfterValidator(_header)]


class About(Part):
    """What the report says of the project, on top."""

    name: Annotated[Text | None, Field(description="what the project is called")] = None
    contact: Annotated[
        Text | None, Field(description="who answers questions about it: a name, an address")
    ] = None


class Input(Part):
    """How files are read, where a command does not say it."""

    source: Annotated[
        Text,
        Field(
            description="whose labelers these are: worker 7 of one source is not that of another"
        ),
    ] = "files"
    columns: Annotated[
        Mapping[str, Text], Field(description="the names that your files use, by role")
    ] = {}


class Delivery(Part):
    """How deliveries to the hook are proven to be the tool's."""

    scheme: Annotated[
        Literal["standard-webhooks", "hmac-sha256", "hmac-timestamp", "shared-secret"] | None,
        Field(description="what proves a delivery; default: as the tool does it"),
    ] = None
    header: Annotated[
        Header | None,
        Field(description="where the signature or the secret stands; default: by the scheme"),
    ] = None
    timestamp_header: Annotated[
        Header | None, Field(description="where the signed time stands; default: by the scheme")
    ] = None
    addresses: Annotated[
        tuple[Annotated[str, AfterValidator(_network)], ...],
        Field(description="addresses and networks that may deliver; default: all"),
    ] = ()


class Connector(Part):
    """A project or data set of an annotation tool. Names that are not here are the connector's."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[
        Text | None, Field(description="which connector; default: the table's name")
    ] = None
    source: Annotated[
        Text | None, Field(description="whose labelers these are; default: the table's name")
    ] = None
    question: Annotated[
        Text | None,
        Field(description="what is read where several things are asked; default: the only one"),
    ] = None
    columns: Annotated[
        Mapping[str, Text], Field(description="the tool's names of fields, by role")
    ] = {}
    hook: Delivery = Delivery()

    @model_validator(mode="after")
    def _check_secrets(self) -> Self:
        _refuse_secrets(self.model_extra or {})
        return self


def _refuse_secrets(table: Mapping[str, Any], *way: str) -> None:
    for name, value in table.items():
        if secretive(name):
            raise Wrong(
                (*way, name),
                "this does not belong into a file; put it into the environment, a file of its own "
                "or the keyring (docs/connectors.md)",
            )
        if isinstance(value, Mapping):
            _refuse_secrets(value, *way, name)


class Ingest(Part):
    """What becomes of answers that were pulled or heard."""

    keep: Annotated[
        Annotated[str, AfterValidator(_days)] | None,
        Field(
            description="how many days an answer stays after the release of its labels; default: "
            "for good"
        ),
    ] = None


class Release(Part):
    """When the worker of the hook releases, and how; options as of `privatize`."""

    when: Annotated[
        Annotated[str, AfterValidator(_when)],
        Field(description="manual, daily, completed, or every:N new answers of a source"),
    ] = "manual"
    mechanism: Annotated[
        Text, Field(description="how labels are privatized; auto: as the release before")
    ] = "auto"
    exhausted: Annotated[
        Exhausted,
        Field(description="refuse when labelers lack allowance, or leave those labels out"),
    ] = "refuse"
    bad_rows: Annotated[
        BadRows,
        Field(description="stop at answers that cannot be used, or set them aside"),
    ] = "stop"
    push: Annotated[
        bool, Field(description="publish each release in the tool, as a new data set")
    ] = False


class Hook(Part):
    """What `serve` and `hook` do."""

    release: Release = Release()


class ProjectFile(Part):
    """All of labelguard.toml."""

    format: Annotated[Literal[1], Field(description="of this file")]
    project: About = About()
    input: Input = Input()
    connectors: Annotated[
        Mapping[Text, Connector], Field(description="annotation tools, each by a name of yours")
    ] = {}
    ingest: Ingest = Ingest()
    hook: Hook = Hook()


def read(data: bytes, path: str) -> Mapping[str, Any]:
    """The tables of a file that `ProjectFile` accepts. Raises `ProjectError`, naming the file."""
    try:
        found = parse_toml(data, path)
    except LabelguardError as error:
        raise ProjectError(str(error)) from None
    if found.get("format") != 1:
        raise ProjectError(f"{path}: format is missing or another; this labelguard reads format 1")
    checked(ProjectFile, found, path, error=ProjectError)
    return found
