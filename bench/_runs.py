"""Finished runs in a file of JSON lines: what the same code has done is not done again."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Record: TypeAlias = dict[str, Any]


def digest_code(*places: Path) -> str:
    """Return a digest of Python files, given by name or by their folders."""
    digest = hashlib.sha256()
    for place in places:
        for path in sorted(place.glob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Store:
    """The records of a file, found by what they are the results of."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._records: dict[str, Record] = {}
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for line in text.splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # a run that was killed may leave half a line
                continue
            self._records[record["key"]] = record

    def get(self, *key: Any) -> Record | None:
        """Return the record of this key, if the run is finished."""
        return self._records.get(_text(key))

    def put(self, record: Record, *key: Any) -> Record:
        """Append the record of a finished run, and return it."""
        name = _text(key)
        self._records[name] = {"key": name, **record}
        line = json.dumps(self._records[name])
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")  # half a line that was left ends here
        print(line, file=sys.stderr, flush=True)
        return self._records[name]


def _text(key: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:24]


def select(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """Return the records that have these values."""
    return [r for r in records if all(r[name] == value for name, value in wanted.items())]


def format_mean(values: Iterable[float], *, signed: bool = False) -> str:
    """Return mean ± standard error over runs, such as .656 ± .003; "" of nothing."""
    found = np.array(list(values))
    if not len(found):
        return ""
    text = f"{found.mean():{'+' if signed else ''}.3f}"
    if len(found) > 1:
        text += f" ± {found.std(ddof=1) / len(found) ** 0.5:.3f}"
    return text.replace("0.", ".")
