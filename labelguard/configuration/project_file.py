"""Models of labelguard.toml, the settings of a project; nothing in it is secret."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from labelguard.configuration.loader import (
    ColumnName,
    InvalidSetting,
    SettingsTable,
    Text,
    looks_secret,
    parse_settings,
    setting,
    validate_settings,
)
from labelguard.errors import LabelguardError, ProjectError
from labelguard.options import BadRows, Exhausted

FILE = "labelguard.toml"


def _make_pattern_validator(pattern: str, expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


# What is blank is not stated.
Statement = Annotated[str, Field(max_length=1024)]
Days = Annotated[
    str, _make_pattern_validator(r"(0|[1-9][0-9]{0,4})d", 'a number of days, like "90d"')
]
Moment = Annotated[
    str,
    _make_pattern_validator(
        r"manual|completed|daily|every:[1-9][0-9]{0,8}", "manual, every:500, completed or daily"
    ),
]
Header = Annotated[str, _make_pattern_validator(r"[A-Za-z0-9_-]+", "the name of a header")]


def _check_ip_network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(
            'expected an address or a network, like "192.0.2.7" or "10.0.0.0/8"'
        ) from None
    return text


class AboutTable(SettingsTable):
    """Name and contact of the project, on top of its report."""

    name: Text | None = setting("name of the project")
    contact: Text | None = setting("who answers questions about it: a name, an address")


class OrganisationTable(SettingsTable):
    """The organisation that processes labels: for the record in the report."""

    controller: Statement | None = setting(
        "who decides what the labels are for: a name, an address"
    )
    contact: Statement | None = setting("whom labelers write to; else that of `project`")
    purpose: Statement | None = setting("what the labels are used for")
    legal_basis: Statement | None = setting("what permits it: consent, a contract, a law")
    recipients: Statement | None = setting("who is given releases and models")
    transfers: Statement | None = setting(
        "other countries that they go to, and what protects them there"
    )
    retention: Statement | None = setting("how long raw labels, releases and models are kept")
    measures: Statement | None = setting("what else protects labels: access, ciphers, training")


class InputTable(SettingsTable):
    """Defaults for reading files, where a command gives no option."""

    source: Text = setting(
        "source of the labelers: worker 7 of one source is not that of another", "files"
    )
    columns: Mapping[str, ColumnName] = setting("the names that your files use, by role", {})


class DeliveryTable(SettingsTable):
    """Proof that a delivery to the hook comes from the tool."""

    scheme: (
        Literal["standard-webhooks", "hmac-sha256", "hmac-timestamp", "shared-secret"] | None
    ) = setting("what proves a delivery; default: as the tool does it")
    header: Header | None = setting("header of the signature or secret; default: by the scheme")
    timestamp_header: Header | None = setting("header of the signed time; default: by the scheme")
    addresses: tuple[Annotated[str, AfterValidator(_check_ip_network)], ...] = setting(
        "addresses and networks that may deliver; default: all", ()
    )


class ConnectorTable(SettingsTable):
    """A project or data set of an annotation tool. Names that are not here are the connector's."""

    model_config = ConfigDict(extra="allow")

    kind: Text | None = setting("which connector; default: the table's name")
    source: Text | None = setting("source of the labelers; default: the table's name")
    question: Text | None = setting("question to read if there are several; default: the only one")
    columns: Mapping[str, ColumnName] = setting("the tool's names of fields, by role", {})
    hook: DeliveryTable = DeliveryTable()

    @model_validator(mode="after")
    def _check_secrets(self) -> Self:
        _refuse_secrets(self.model_extra or {})
        return self


def _refuse_secrets(table: Mapping[str, Any], *way: str) -> None:
    for name, value in table.items():
        if looks_secret(name):
            raise InvalidSetting(
                (*way, name),
                "this does not belong into a file; put it into the environment, a file of its own "
                "or the keyring (docs/connectors.md)",
            )
        if isinstance(value, Mapping):
            _refuse_secrets(value, *way, name)


class IngestTable(SettingsTable):
    """Retention of answers that were pulled or delivered."""

    keep: Days | None = setting(
        "how many days an answer stays after the release of its labels; default: for good"
    )


class ReleaseTable(SettingsTable):
    """Releases by the worker of the hook; options as of `privatize`."""

    when: Moment = setting("manual, daily, completed, or every:N new answers of a source", "manual")
    mechanism: Text = setting("how labels are privatized; auto: as the release before", "auto")
    exhausted: Exhausted = setting(
        "refuse when labelers lack allowance, or leave those labels out", "refuse"
    )
    bad_rows: BadRows = setting("stop at answers that cannot be used, or set them aside", "stop")
    push: bool = setting("publish each release in Argilla, as a new data set", False)


class HookTable(SettingsTable):
    """Settings of `serve` and `hook`."""

    release: ReleaseTable = ReleaseTable()


class ProjectFile(SettingsTable):
    """All of labelguard.toml."""

    format: Literal[1] = Field(description="of this file")
    project: AboutTable = AboutTable()
    organisation: OrganisationTable = OrganisationTable()
    input: InputTable = InputTable()
    connectors: Mapping[Text, ConnectorTable] = setting(
        "annotation tools, each by a name of yours", {}
    )
    ingest: IngestTable = IngestTable()
    hook: HookTable = HookTable()


def read_project_file(data: bytes, path: str) -> Mapping[str, Any]:
    """Return the tables of a file that `ProjectFile` accepts.

    Raises `ProjectError`, naming the file.
    """
    try:
        tables = parse_settings(data, path)
    except LabelguardError as error:
        raise ProjectError(str(error)) from None
    if tables.get("format") != 1:
        raise ProjectError(f"{path}: format is missing or another; this labelguard reads format 1")
    validate_settings(ProjectFile, tables, path, error=ProjectError)
    return tables
