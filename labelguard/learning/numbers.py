"""Features that the input brings: the provider `columns:a,b`, numbers of each response or pair."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa

from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.learning.providers import FeatureProvider, Features, State, Stateless


def columns(options: str, state: State | None) -> FeatureProvider:
    """Return the provider `columns:a,b`."""
    names = [name.strip() for name in options.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise LabelguardError(f"expected columns:NAME,… with distinct names, found {options!r}")
    return _Columns(names)


class _Columns(Stateless):
    """Numeric columns of the pairs that hold differences already; d = number of columns."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def __call__(self, pairs: pa.Table) -> Features:
        return np.stack(
            [_read_number_column(pairs, f"feature_{name}") for name in self._names], axis=1
        )

    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def identity(self) -> str:
        return f"columns {','.join(self._names)}"


def _read_number_column(pairs: pa.Table, name: str) -> Features:
    if name not in pairs.column_names:
        known = [column for column in pairs.column_names if column.startswith("feature_")]
        raise InvalidLabels(f"pairs have no column {name}; found {', '.join(known) or 'none'}")
    column = pairs[name]
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InvalidLabels(f"column {name} must hold numbers, found {kind}")
    # Through integers, because Arrow has no cast from boolean to double; nulls become NaN.
    plain = column.cast(pa.int8()) if pa.types.is_boolean(kind) else column
    return cast(Features, plain.cast(pa.float64(), safe=False).to_numpy().astype(np.float32))
