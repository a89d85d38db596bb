"""Loading what commands work with."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _WithoutPandas:
    def find_spec(self, name: str, *place: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextmanager
def load_engines() -> Iterator[None]:
    """Load the modules that are imported within it at less cost, and pyarrow without pandas.

    Modules are no garbage to look for. And pyarrow loads pandas, where that is installed, at its
    first array (a quarter of a second), to know pandas' objects from others: commands have none.
    """
    finder: Any = _WithoutPandas()
    gc.disable()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0]).to_numpy()
    finally:
        sys.meta_path.remove(finder)
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
