"""What features need of an input beside its texts: public columns that are carried to the pairs.

A specification names them; reading an input brings them along, turned to the canonical order of the
two sides, so that a provider finds them in the table of pairs:

    columns:a                     feature_a, the difference of the two sides
    source:model,by=language      source_model_first, source_model_second and stratum_language
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labelguard.errors import LabelguardError

__all__ = ["Carried", "column_features", "is_carried", "source_options"]


@dataclass(frozen=True)
class Carried:
    """A public property of what is compared, and its name in the specification.

    A `number` of each response, the `source` that wrote it, or the `stratum` of the whole pair.
    """

    name: str
    kind: Literal["number", "source", "stratum"] = "number"

    @property
    def columns(self) -> tuple[str, ...]:
        """What it is called in a table of pairs."""
        if self.kind == "source":
            return f"source_{self.name}_first", f"source_{self.name}_second"
        return (f"{'feature' if self.kind == 'number' else 'stratum'}_{self.name}",)


def is_carried(column: str) -> bool:
    """Whether a column of a table of pairs was carried."""
    of_sides = column.startswith("source_") and column.endswith(("_first", "_second"))
    return of_sides or column.startswith(("feature_", "stratum_"))


def column_features(spec: str) -> tuple[Carried, ...]:
    """What a feature specification asks of an input; raises as `source_options` does."""
    found: list[Carried] = []
    for part in spec.split("+"):
        name, _, options = part.strip().partition(":")
        if name == "columns":
            found += [Carried(n.strip()) for n in options.split(",") if n.strip()]
        if name == "source":
            column, by = source_options(options)
            found += [Carried(column, "source"), *([Carried(by, "stratum")] if by else [])]
    return tuple(dict.fromkeys(found))


def source_options(options: str) -> tuple[str, str | None]:
    """The columns of `source:COLUMN,by=COLUMN`. Raises `LabelguardError` if they are none."""
    column, *rest = (option.strip() for option in options.split(","))
    by = rest[0].removeprefix("by=").strip() if rest and rest[0].startswith("by=") else ""
    if not column or "=" in column or len(rest) > 1 or (rest and not by):
        raise LabelguardError(
            f"expected source:COLUMN or source:COLUMN,by=COLUMN, found source:{options}"
        )
    return column, by or None
