"""What a mechanism does in a release, and in which order; `labelguard.pipeline` calls it.

`prepare` sees public columns only and comes before the charge; `draw` alone reads labels, behind a
grant, and fills the private map; once that is complete and the ledger knows it, `finish` turns what
was drawn into released rows and reads no label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from labelguard.ingest.staging import Staged
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.ledger import Grant, Ledger
from labelguard.policy.policy import Allowance, Policy
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.release.planning import Plan


@dataclass(frozen=True)
class Job:
    """What a mechanism works with during one release."""

    opened: OpenProject
    policy: Policy
    allowance: Allowance
    columns: Mapping[str, str]
    question: str | None
    skip_bad: bool
    again: bool
    workers: int
    progress: Callable[[str, float | None], None]

    @property
    def project(self) -> Project:
        """Paths and settings."""
        return self.opened.project

    @property
    def keys(self) -> KeyRing:
        """The project's secrets."""
        return self.opened.keys

    @property
    def ledger(self) -> Ledger:
        """What was charged."""
        return self.opened.ledger

    @property
    def outcomes(self) -> Path:
        """Released rows by item: row, key, value, and probabilities (see `publishing`)."""
        return self.project.work / "outcomes"


@dataclass(frozen=True)
class Finished:
    """What a mechanism adds to a release: sections of the card, files, and unlabeled pairs.

    `also` is a staged input whose rows, with the outcomes in `also_outcomes`, join the release.
    """

    card: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    also: Staged | None = None
    also_outcomes: Path | None = None
    also_rows: int = 0


class Mechanism(Protocol):
    """One way to release labels."""

    name: str
    version: int
    priced: str

    @property
    def features(self) -> tuple[str, ...]:
        """Numeric properties of responses that the input must have."""
        ...

    def settings(self) -> dict[str, Any]:
        """What was asked for, beyond the policy; part of the request's idempotency key."""
        ...

    def read(self, job: Job, staged: Staged) -> bytes:
        """Read further public input; its digest becomes part of the idempotency key."""
        ...

    def prepare(
        self, job: Job, staged: Staged, plan: Plan, recorded: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Public work before the charge; returns the chosen parameters for the ledger.

        `recorded` are those of the release that is being resumed: they are taken as they are.
        """
        ...

    def draw(self, job: Job, staged: Staged, plan: Plan, grant: Grant, drawn: Path | None) -> None:
        """Labels in, the private map out, into the directory `drawn`, with randomness of its own.

        Without that directory the release was drawn before, and no label is read.
        """
        ...

    def finish(self, job: Job, staged: Staged, plan: Plan, grant: Grant) -> Finished:
        """From the private map and public columns, the released rows in `job.outcomes`."""
        ...
