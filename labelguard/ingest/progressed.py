"""How far the worker has come, in a file of the project: nothing of it is secret or costs twice.

Were it lost, the worker would ask for releases that were made already, and be given those.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from labelguard.errors import ProjectError
from labelguard.storage.files import write_atomically

FILE = "worker.json"
EXPORTS = "exports.json"
"""That of `hook run`: two processes that write one file would undo each other's entries."""


@dataclass
class Progressed:
    """By source: the last segment that was released (`segments`), by which release (`releases`) and
    on which day (`days`). By connector: the day of its last reconciliation (`reconciled`), and the
    release that was published last (`pushed`).
    """

    segments: dict[str, int] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    days: dict[str, str] = field(default_factory=dict)
    reconciled: dict[str, str] = field(default_factory=dict)
    pushed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, state: Path, file: str = FILE) -> Self:
        """That of the project in `state`, from its start if there is none."""
        path = state / file
        try:
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError):
            raise ProjectError(
                f"{path} is not what a worker wrote; remove it, nothing is lost by that"
            ) from None

    def write(self, state: Path, file: str = FILE) -> None:
        """Keep it, whole or as it was before."""
        write_atomically(state / file, json.dumps(asdict(self)).encode(), mode=0o600)
