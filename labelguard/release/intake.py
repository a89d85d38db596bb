"""How a release reads its inputs: the labels, and further pairs without any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from labelguard.errors import InvalidLabels
from labelguard.ingest import groups
from labelguard.ingest.layouts import LAYOUTS, Reading, side_roles
from labelguard.ingest.pairs import distinct_pairs
from labelguard.ingest.sources import Input
from labelguard.ingest.staged import Staged
from labelguard.ingest.staging import StagingOptions, stage
from labelguard.learning.carried import Carried
from labelguard.options import ReadingOptions, check
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.release import ingested
from labelguard.release.protocol import Further
from labelguard.terms import Progress

_PUBLIC_CONTENT = (*LAYOUTS["pairs"][:3], *LAYOUTS["chosen"], "responses", "item_id", "question")


@dataclass(frozen=True, kw_only=True)
class Intake(ReadingOptions):
    """Reads an input as its options say."""

    @classmethod
    def of(cls, home: Project, options: Mapping[str, Any]) -> Self:
        """From options of a command, with the columns that the project names."""
        return cls(**{**options, "columns": {**home.columns, **(options.get("columns") or {})}})

    def __post_init__(self) -> None:
        check(Intake, vars(self))

    @property
    def skip_bad(self) -> bool:
        """Whether bad rows are left out."""
        return self.bad_rows == "quarantine"

    def stage(
        self,
        opened: OpenProject,
        source: Input,
        reading: Reading,
        progress: Progress,
        *,
        drop_ties: bool = False,
    ) -> Staged:
        """An input of labels in the work directory."""
        options = StagingOptions(
            reading,
            opened.project.namespace,
            self.skip_bad,
            drop_ties,
            groups.in_force(opened.ledger, reading.unit),
            opened.ledger.tombstones(),
            self.max_input_bytes,
            spool=opened.project.work,
        )
        opened.project.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        return stage(
            ingested.parts(source, opened, self.columns),
            opened.project.work / "input",
            opened.keys,
            options,
            lambda name, rows: progress(f"reading {name}: {rows:,} rows", None),
        )

    def stage_further(
        self,
        opened: OpenProject,
        source: Input | None,
        features: tuple[Carried, ...],
        public_columns: tuple[str, ...],
        labeled: Staged,
        progress: Progress,
    ) -> Further | None:
        """Further pairs, without labels and labelers, if there are any."""
        if source is None:
            return None
        public = {*_PUBLIC_CONTENT, *side_roles(self.columns)}
        columns = {role: name for role, name in self.columns.items() if role in public}
        reading = Reading(
            columns,
            "none",
            features,
            labelled=False,
            question=self.question,
            format=self.format,
            public_columns=public_columns,
        )
        staged = stage(
            source,
            opened.project.work / "also",
            opened.keys,
            StagingOptions(reading, "", quarantine=self.skip_bad, spool=opened.project.work),
            lambda name, rows: progress(f"reading {name}: {rows:,} pairs", None),
        )
        if staged.chat != labeled.chat:
            raise InvalidLabels(
                "the pairs of --also must be texts if the labels are of texts, chats if of chats"
            )
        return Further(staged, distinct_pairs(staged))
