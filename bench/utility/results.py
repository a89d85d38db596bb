"""One JSON line for each finished run; what is finished is not run again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from labelguard_trainer import gradient

import labelguard

Record: TypeAlias = dict[str, Any]

_MEASURED = ("accounting", "mechanisms", "learning", "planner")
_HERE = ("datasets", "gradients", "mechanisms")


@dataclass(frozen=True)
class Setting:
    """A problem without its split: dataset, features, and what is public of ties."""

    dataset: str
    features: str
    ties: str

    def __str__(self) -> str:
        return f"{self.dataset}, {self.features}, ties {self.ties}"


@dataclass(frozen=True)
class Run:
    """One line of results. `epsilon` is None where there is no privacy."""

    setting: Setting
    mechanism: str
    epsilon: float | None
    delta: float
    seed: int

    def key(self, spec: Any) -> str:
        """A digest of everything the result depends on: settings and code."""
        text = json.dumps([asdict(self), repr(spec), code_version()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def code_version() -> str:
    """A digest of the sources that decide the numbers: of the library's, and of the problems'."""
    library, here = Path(labelguard.__file__).parent, Path(__file__).parent
    folders = [*(library / name for name in _MEASURED), Path(gradient.__file__).parent]
    files = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    digest = hashlib.sha256()
    for path in [*files, *(here / f"{name}.py" for name in _HERE)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Store:
    """The results in a file of JSON lines, found by their keys."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and not path.read_bytes().endswith(b"\n"):
            with path.open("a", encoding="utf-8") as file:  # closes the half line of a killed run
                file.write("\n")
        self._path = path
        self._records = {record["key"]: record for record in _read(path)}

    def get(self, key: str) -> Record | None:
        """The finished run with this key."""
        return self._records.get(key)

    def records(self) -> list[Record]:
        """All of them."""
        return list(self._records.values())

    def add(self, record: Record) -> None:
        """Append a finished run; a line is written whole before the next run begins."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._records[record["key"]] = record


def _read(path: Path) -> Iterator[Record]:
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # a run that was killed may leave half a line
            continue


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its standard error."""

    value: float
    error: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}"


class Results:
    """Finished runs, by setting, mechanism and ε."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._found: dict[tuple[Setting, str, float | None], dict[int, Record]] = {}
        for record in records:
            setting = Setting(record["dataset"], record["features"], record["ties"])
            seeds = self._found.setdefault((setting, record["mechanism"], record["epsilon"]), {})
            seeds[record["seed"]] = record

    def settings(self) -> list[Setting]:
        """The settings that were run, in that order."""
        return list(dict.fromkeys(setting for setting, _, _ in self._found))

    def mechanisms(self, setting: Setting) -> list[str]:
        """The mechanisms that were run on a setting."""
        return list(dict.fromkeys(name for where, name, _ in self._found if where == setting))

    def epsilons(self, setting: Setting) -> list[float]:
        """The values of ε that were run on a setting, ascending."""
        found = {epsilon for where, _, epsilon in self._found if where == setting}
        return sorted(epsilon for epsilon in found if epsilon is not None)

    def values(
        self, setting: Setting, mechanism: str, epsilon: float | None, measure: str
    ) -> dict[int, float]:
        """A measure by seed; empty if nothing was run. Without privacy there is one ε, None."""
        records = self._found.get((setting, mechanism, epsilon))
        if records is None:
            records = self._found.get((setting, mechanism, None), {})
        return {
            seed: float(record[measure])
            for seed, record in records.items()
            if record.get(measure) is not None
        }

    def lists(
        self, setting: Setting, mechanism: str, epsilon: float | None, measure: str
    ) -> list[Any]:
        """A measure that is a list, of every seed that has it."""
        records = self._found.get((setting, mechanism, epsilon), {}).values()
        return [record[measure] for record in records if measure in record]

    def mean(
        self, setting: Setting, mechanism: str, epsilon: float | None, measure: str
    ) -> Mean | None:
        """Mean and standard error of a measure over seeds, or None if nothing was run."""
        return mean(self.values(setting, mechanism, epsilon, measure).values())


def mean(values: Iterable[float]) -> Mean | None:
    """Mean and standard error; of one value the error is NaN, of none there is no mean."""
    found = np.array(list(values))
    if not len(found):
        return None
    spread = float(found.std(ddof=1)) if len(found) > 1 else float("nan")
    return Mean(float(found.mean()), spread / len(found) ** 0.5, len(found))
