"""Arrays in .npz files: without pickle, without compression, never larger than the file.

A compressed file of a megabyte can hold a gigabyte of zeros; what is stored as it is cannot.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the file that `load_arrays` reads."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name.

    Sizes are taken from the headers and compared with what is there before an array is made.
    Raises `ValueError` for anything but arrays of plain numbers stored as they are, `OSError`.
    """
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise ValueError("the arrays are larger than their file")
            return {m.filename.removesuffix(".npy"): _read_array(file, m) for m in members}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from None


_FORMAT: Any = np.lib.format  # not typed before NumPy 2.3


def _read_array(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with file.open(member) as stream:
        version = _FORMAT.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"arrays of version {version}")
        shape, _, kind = _FORMAT.read_array_header_1_0(stream)
        if math.prod(shape) * kind.itemsize != member.file_size - stream.tell():
            raise ValueError(f"{member.filename} has another size than it says")
    with file.open(member) as stream:
        array: NDArray[Any] = _FORMAT.read_array(stream, allow_pickle=False)
        return array
