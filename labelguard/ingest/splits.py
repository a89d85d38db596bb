"""Splits of a dataset: which files of a directory, or tables in memory, belong to which.

What a directory's splits are follows from the names of its files alone. Several splits are never
read together unasked: a test split labeled along with the rest would cost its labelers' budget.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labelguard.errors import InvalidLabels
from labelguard.spelling import closest

_WORDS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval")
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(-[0-9a-f]+)?")
_NUMBERED = re.compile(rf"({'|'.join(_WORDS)})([-_.]?\d+)?")
_LISTED = "dataset_dict.json"
METADATA = (_LISTED, "dataset_info.json", "dataset_infos.json", "state.json")
"""What `datasets` writes beside the data of a directory."""


def chosen(found: Mapping[str, Any], split: str | None, where: str) -> list[Any]:
    """Of splits by name, the one that is asked for, or the only one. Raises `InvalidLabels`."""
    if split is None and len(found) == 1:
        return list(found.values())
    if split is not None and split in found:
        return [found[split]]
    several = f"{where}: {'splits' if len(found) > 1 else 'the only split is'} {', '.join(found)}"
    if split is None:
        raise InvalidLabels(f"{several}; choose one, as in --split {next(iter(found))}")
    raise InvalidLabels(f"{several}; found no split {split!r}{closest(split, found)}")


def of_directory(directory: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of every split of a directory, by their names; none if not all look like splits.

    Splits are folders that `dataset_dict.json` lists; shards like `train-00000-of-00002.parquet`;
    and files or folders that are called train, test, validation and the like.
    """
    listed = _listed(directory)
    found: dict[str, list[Path]] = {}
    for file in files:
        name = _split(file.relative_to(directory), listed)
        if name is None:
            return {}
        found.setdefault(name, []).append(file)
    return found


def _listed(directory: Path) -> Sequence[str]:
    """What `DatasetDict.save_to_disk` lists."""
    try:
        found = json.loads((directory / _LISTED).read_bytes())["splits"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else ()


def _split(path: Path, listed: Sequence[str]) -> str | None:
    """The split of one file, by its path within the directory."""
    if listed:
        return path.parts[0] if len(path.parts) > 1 and path.parts[0] in listed else None
    stem = path.name.partition(".")[0]
    shard = _SHARD.fullmatch(stem)
    if shard and shard[1] != "data":  # so are the files of any one dataset called
        return shard[1]
    numbered = _NUMBERED.fullmatch(stem.lower())
    if numbered:
        return numbered[1]
    return next((part for part in path.parts[:-1] if part.lower() in _WORDS), None)


def refuse_unused(split: str | None, used: Iterable[bool]) -> None:
    """Raise `InvalidLabels` if a split is asked for and nothing of an input has any."""
    if split is not None and not any(used):
        raise InvalidLabels(
            f"--split {split}: the input has no splits; leave it out, or name a directory that "
            "holds files like train-00000-of-00001.parquet or train.jsonl"
        )
