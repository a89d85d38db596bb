"""The copy of a release that `-o DIR` asks for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from labelguard._files import publish_directory
from labelguard.errors import ProjectError
from labelguard.release import fault, read_card


def check(output: Path | None) -> None:
    """Refuse, before any work, a place that could not take a release."""
    if output is None:
        return
    if output.exists() and not _is_empty(output) and not (output / "card.json").is_file():
        raise ProjectError(f"{output} exists and is not an empty directory; choose another -o")
    place = output if output.exists() else next(p for p in output.absolute().parents if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise ProjectError(f"{place} is not a directory one can write to; choose another -o")


def check_new(output: Path | None) -> None:
    """Refuse a directory that holds something, before a new release is charged."""
    if output is not None and output.exists() and not _is_empty(output):
        raise ProjectError(f"{output} holds another release; choose another -o")


def deliver(release: Path, output: Path, files: Mapping[str, str]) -> None:
    """Copy a release to `output`, whole or not at all, unless it is there already."""
    if output.exists() and not _is_empty(output):
        if read_card(output)["release"] != read_card(release)["release"]:
            check_new(output)
        broken = fault(output, files)
        if broken:
            raise ProjectError(f"{broken}; remove {output} and run this again")
        return
    temporary = output.with_name(output.name + ".partial")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(release, temporary)
        publish_directory(temporary, output)
    except OSError as error:
        raise ProjectError(
            f"the release is safe in {release}, but cannot be copied to {output}: {error.strerror}"
        ) from None


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())
