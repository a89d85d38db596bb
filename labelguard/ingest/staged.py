"""An input on disk, as `stage` left it: its buckets, its counts, its faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, OutsideDomain
from labelguard.ingest.formats import Understood
from labelguard.ingest.sources import Part
from labelguard.keys.identities import Identities
from labelguard.storage import blocks, buckets


@dataclass
class Fault:
    """A row that cannot be used: where it stands and why. Never what its label is."""

    part: str
    row: int
    column: str
    reason: str

    def __str__(self) -> str:
        return f"{self.part} row {self.row}: column {self.column}: {self.reason}"


@dataclass
class Staged:
    """An input on disk: its buckets, its counts, and the digest of all that is public in it."""

    directory: Path
    chat: bool = False
    parts: tuple[Part, ...] = ()
    """What was given, each part as it is."""
    understood: tuple[Understood, ...] = ()
    """What was read, each of them under its format."""
    formats: set[str] = field(default_factory=set)
    own_values: set[str] = field(default_factory=set)
    """Those that say what their labels mean, whatever the policy does."""
    rows_read: int = 0
    rows: int = 0
    identical_sides: int = 0
    faults: list[Fault] = field(default_factory=list)
    fault_count: int = 0
    fault_reasons: Counter[str] = field(default_factory=Counter)
    """How many rows cannot be used for which reason, wherever they stand."""
    label_fault: Fault | None = None
    """The first row whose label is outside the domain; `label_fault_count` says how many there are.
    """
    label_fault_count: int = 0
    outside: dict[str, list[int]] = field(default_factory=dict, repr=False)
    """PRIVATE: rows of answers of tools, by part, whose labels outside the domain became ties."""
    skipped: int = 0
    """Rows without a label, left out where skip status is public, and in no other count but
    `rows_read`.
    """
    left_out: Counter[str] = field(default_factory=Counter)
    """Answers of a tool that are no rows, by what is public of them: ground truths, drafts."""
    withdrawn: int = 0
    """Answers that are not there any more, because their labeler skipped the same later."""
    public_digest: bytes = b""
    content_type: pa.DataType = field(default_factory=pa.string)
    layouts: set[str] = field(default_factory=set)
    pairs_of_rankings: bool = False
    """Rows are pairs of lists of responses: of rankings or, if `choices`, of choices."""
    choices: bool = False
    rankings: bool = False
    given_ids: bool = False
    questions: bool = False
    timed: bool = False
    recorded: bool = False
    labelers: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    """The column of each role, in any part of the input; `label of Q` where `--question Q` is."""
    identities: Identities = field(default_factory=lambda: Identities.from_bytes(b""))
    """Who gave its rows, where it tells."""
    bad_rows: dict[str, list[int]] = field(default_factory=dict)
    refused_rows: int = 0
    """Rows of labelers who have left: dropped at the door, good or bad, and in no other count."""
    refused_labelers: int = 0

    @property
    def rows_directory(self) -> Path:
        """PRIVATE: rows by unit, with labels, in canonical order (see `labelguard.ordering`)."""
        return self.directory / "rows"

    @property
    def texts_directory(self) -> Path:
        """Public texts by item."""
        return self.directory / "texts"

    def labels_of_units(self) -> NDArray[np.int64]:
        """How many usable rows every unit gave, (units,); each lies whole in one bucket."""
        found = (buckets.read_bucket(self.rows_directory, b) for b in range(buckets.BUCKETS))
        units = (blocks.unique(buckets.blocks(table, "unit"))[1] for table in found if table)
        return np.concatenate([np.zeros(0, np.int64), *map(np.bincount, units)])

    def raise_for(self, faults: list[Fault], count: int) -> None:
        """Stop at bad rows: the first one in full, and how many more there are."""
        if not count:
            return
        more = f" ({count - 1} more bad rows)" if count > 1 else ""
        raise InvalidLabels(
            f"{faults[0]}{more}; mend the input or set such rows aside: --bad-rows quarantine"
        )

    def raise_for_labels(self) -> None:
        """Stop at labels outside their domain. Such rows cannot be set aside: that would tell what
        their labels are.
        """
        if self.label_fault is None:
            return
        more = self.label_fault_count - 1
        rest = f" ({more} more such rows)" if more else ""
        raise OutsideDomain(f"{self.label_fault}{rest}; {self._remedy}")

    @property
    def _remedy(self) -> str:
        """What to do about labels outside their domain, whatever they are."""
        if self.own_values:
            own = ", ".join(sorted(self.own_values))
            return f"mend the input, or name another --format than {own}"
        return (
            "mend the input, or say beforehand how labels are coded: --label-values a-b, "
            "left-right, 1-2 or true-false, or every value: --label-values a=win,b=loss,tie=draw"
        )
