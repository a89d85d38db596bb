"""Large arrays in scratch files; arrays in .npz files, without pickle or compression.

A compressed file of a megabyte can hold a gigabyte of zeros; what is stored as it is cannot.
"""

from __future__ import annotations

import io
import math
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bytes of an array that memory is not to hold as a whole.
_LARGE = 64 << 20


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


def allocate(shape: tuple[int, int], scratch: Path | None) -> NDArray[np.float32]:
    """Return an empty array (rows, columns), in a file in `scratch` if it is a large one.

    The system keeps of a file in memory what there is room for. The file has no name, and goes
    with the array. Raises `OSError` where the disk is full.
    """
    size = math.prod(shape) * np.dtype(np.float32).itemsize
    if scratch is None or size < _LARGE:
        return np.empty(shape, np.float32)
    with tempfile.TemporaryFile(dir=scratch) as file:
        for start in range(0, size, _LARGE):  # a full disk would end the process in a map's write
            file.write(bytes(min(_LARGE, size - start)))
        file.flush()
        return np.memmap(file, np.float32, "r+", shape=shape).view(np.ndarray)


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
