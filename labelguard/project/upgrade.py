"""`project migrate`: the ledger's tables become those of this version, as in any job."""

from __future__ import annotations

from dataclasses import dataclass

from labelguard.ledger import schema
from labelguard.ledger.journal import Anchor
from labelguard.project.opening import OpenProject, Where


@dataclass(frozen=True)
class Migrated:
    """A project whose ledger this version works with."""

    project: str
    """the project's directory"""
    schema: int
    """the number of the ledger's tables: 1 of labelguard 0.2.0"""
    anchor: str
    """the journal's newest entry: the line to keep elsewhere"""


def migrate(project: Where = None) -> Migrated:
    """Bring the ledger of a project up to date, if an earlier version made it.

    Raises what opening a project for a job does (`OpenProject.job`).
    """
    with OpenProject.job(project) as opened:
        anchor = Anchor(*opened.ledger.head())
        return Migrated(str(opened.project.state), schema.VERSION, str(anchor))
