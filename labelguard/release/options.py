"""How one `privatize` treats its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labelguard.errors import LabelguardError


@dataclass(frozen=True)
class Options:
    """How one `privatize` treats its input; what it may cost is `policy.Request`."""

    columns: Mapping[str, str]
    question: str | None = None
    bad_rows: Literal["stop", "quarantine"] = "stop"
    exhausted: Literal["refuse", "drop"] = "refuse"
    again: bool = False
    accept_delta: bool = False
    output: Path | None = None
    workers: int | None = None
    max_input_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("bad_rows", ("stop", "quarantine")),
            ("exhausted", ("refuse", "drop")),
        ):
            if getattr(self, name) not in allowed:
                raise LabelguardError(f"{name} must be one of {', '.join(allowed)}")
        if self.workers is not None and self.workers < 1:
            raise LabelguardError(f"workers must be at least 1, found {self.workers}")
