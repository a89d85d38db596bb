"""Inputs in a store (`s3://…`, `gs://…`, `hf://…`), which fsspec opens.

They are copied before anything is read, and are read as files are. The package of each store takes
credentials, region and endpoint from the environment.
"""

from __future__ import annotations

import glob
import re
import tempfile
from pathlib import Path

from labelguard.errors import InvalidLabels
from labelguard.extras import MissingExtra, format_install_line

# Names become paths of copies: nothing hidden in them, and nothing that leads elsewhere.
_PART = r"(?!\.)[A-Za-z0-9_.=+@~%-]+"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_directories: list[tempfile.TemporaryDirectory[str]] = []


def copy_objects(address: str, directory: Path | None = None) -> list[tuple[str, Path]]:
    """Copy the objects of an address: one, all below a prefix, or those of a pattern.

    Returns the address and the copy of each, in the order of the addresses. Copies lie in a new
    directory of mode 0700 in `directory`, or in TMPDIR until the process ends.

    Raises `MissingExtra` where a package is missing, `InvalidLabels` where the store refuses, and
    for no object, or one with a name that no file of ours has.
    """
    if directory is None:
        _directories.append(tempfile.TemporaryDirectory(prefix="labelguard-"))
        directory = Path(_directories[-1].name)
    target = Path(tempfile.mkdtemp(prefix="objects-", dir=directory))
    protocol = address.partition("://")[0]
    try:
        import fsspec

        store, path = fsspec.url_to_fs(address)
        store.invalidate_cache()
        find = store.glob if glob.has_magic(path) else store.find
        listed = {
            name.lstrip("/"): one
            for name, one in sorted(find(path, detail=True).items())
            if one["type"] == "file" and not name.rpartition("/")[2].startswith((".", "_"))
        }
        for name in listed:
            if not _NAME.fullmatch(name):
                raise InvalidLabels(
                    f"{f'{protocol}://{name}'!a}: names of objects may have letters, digits and "
                    "_ . = + @ ~ % -"
                )
        if not listed:
            raise InvalidLabels(f"{address}: no such object, and none below it")
        copies = {f"{protocol}://{name}": target / name for name in listed}
        for copy in copies.values():
            copy.parent.mkdir(parents=True, exist_ok=True)
        store.get([one["name"] for one in listed.values()], [str(copy) for copy in copies.values()])
    except InvalidLabels:
        raise
    except ImportError as error:
        raise MissingExtra(
            f"{address}: {error}; or install the extra: {format_install_line('cloud')}"
        ) from error
    except Exception as error:  # each store has errors of its own
        line = " ".join(str(error).split()) or type(error).__name__
        raise InvalidLabels(f"{address}: {line}") from error
    for (name, copy), one in zip(copies.items(), listed.values(), strict=True):
        if one.get("size") not in (None, copy.stat().st_size):
            raise InvalidLabels(f"{name}: it was written anew meanwhile; run this again")
    return list(copies.items())
