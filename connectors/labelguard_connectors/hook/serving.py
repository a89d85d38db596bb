"""Which connectors a project's hook serves, and how each is verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labelguard.errors import ConnectorError
from labelguard.ingest import connector as connectors
from labelguard.ingest.connector import Connector, Settings, credential
from labelguard.project import ingestion
from labelguard.project.project import Project
from labelguard_connectors.hook.verification import Scheme

SECRET = "hook_secret"


@dataclass(frozen=True)
class Served:
    """A connector that is served. Its repr shows no secret."""

    name: str
    connector: Connector = field(repr=False)
    scheme: Scheme
    secrets: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Serving:
    """The connectors of a project by name, and why others are not served."""

    served: Mapping[str, Served]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, project: Project) -> Serving:
        """From labelguard.toml and the secrets that there are.

        Raises `ConnectorError` for settings that cannot be, and where nothing would be served.
        """
        served: dict[str, Served] = {}
        left_out: dict[str, str] = {}
        for name, settings in ingestion.settings(project).items():
            try:
                secrets = tuple(credential(name, SECRET).split())
            except ConnectorError as error:
                left_out[name] = str(error)
                continue
            served[name] = _served(settings, secrets)
        if not served:
            why = "; ".join(left_out.values()) or "labelguard.toml has no [connectors.NAME]"
            raise ConnectorError(f"there is no connector to serve: {why}")
        return cls(served, left_out)


def _served(settings: Settings, secrets: tuple[str, ...]) -> Served:
    scheme = Scheme.of(settings)
    scheme.check_secrets(settings.name, secrets)
    return Served(settings.name, connectors.connector(settings), scheme, secrets)
