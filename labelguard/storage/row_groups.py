"""Parquet files put together from others, row group by row group, as bytes.

What workers encoded and compressed is neither decoded nor compressed a second time: row groups are
copied, and the footers become one, in which they begin where they are now. The outcome is what one
writer of all of them would have written. A footer is a structure of Thrift's compact protocol
(`parquet.thrift` of the Parquet format says what is in it); Arrow writes footers, but does not move
them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

_MAGIC = b"PAR1"
# Kinds of values in the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
# Fields of a footer, of its row groups, and of their columns.
_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _GROUP_BEGINS, _ORDINAL = 1, 5, 7
_COLUMN_BEGINS, _OF_COLUMN, _INDICES = 2, 3, (4, 6)
_PAGES = (9, 10, 11, 14)

# Fields by number, each a kind and a value; a list is the kind of its elements and these.
_Struct = dict[int, tuple[int, Any]]


def join_files(parts: Iterable[Path], target: Path) -> int:
    """Write a file of all row groups of `parts`, which have one schema; return its number of rows.

    Every part is removed once it is copied. Raises `ValueError` for what is no Parquet file.
    """
    footer: _Struct = {}
    with target.open("wb") as joined:
        joined.write(_MAGIC)
        for part in parts:
            with part.open("rb") as file:
                own, length = _read_footer(file)
                _move(own, joined.tell() - len(_MAGIC), len(_groups(footer)))
                _copy(file, joined, length)
            footer = footer or {**own, _ROWS: (_I64, 0), _ROW_GROUPS: (_LIST, (_STRUCT, []))}
            footer[_ROWS] = (_I64, footer[_ROWS][1] + own[_ROWS][1])
            _groups(footer).extend(_groups(own))
            part.unlink()
        data = bytearray()
        _write_struct(data, footer)
        joined.write(data + struct.pack("<I", len(data)) + _MAGIC)
    return int(footer[_ROWS][1])


def _read_footer(file: BinaryIO) -> tuple[_Struct, int]:
    """Return the footer of a file, and how many bytes of row groups stand before it."""
    end = file.seek(-8, 2)
    length, magic = struct.unpack("<I4s", file.read(8))
    if magic != _MAGIC or length > end - len(_MAGIC):
        raise ValueError("not a complete Parquet file")
    file.seek(end - length)
    try:
        footer = _read_struct(BytesIO(file.read(length)))
    except IndexError:
        raise ValueError("not a complete Parquet file") from None
    return footer, end - length - len(_MAGIC)


def _copy(file: BinaryIO, joined: BinaryIO, length: int) -> None:
    file.seek(len(_MAGIC))
    while length:
        data = file.read(min(length, 1 << 20))
        if not data:
            raise ValueError("a Parquet file became shorter while it was read")
        joined.write(data)
        length -= len(data)


def _groups(footer: _Struct) -> list[_Struct]:
    groups: list[_Struct] = footer[_ROW_GROUPS][1][1] if footer else []
    return groups


def _move(footer: _Struct, distance: int, before: int) -> None:
    """Have the row groups of a footer begin later, after so many others."""

    def move(fields: _Struct, *names: int) -> None:
        for name in names:
            if name in fields and fields[name][1]:  # 0 is what nobody uses
                fields[name] = (_I64, fields[name][1] + distance)

    for number, group in enumerate(_groups(footer), before):
        move(group, _GROUP_BEGINS)
        if _ORDINAL in group:
            group[_ORDINAL] = (_I16, number)
        for column in group[_COLUMNS][1][1]:
            move(column, _COLUMN_BEGINS, *_INDICES)
            move(column[_OF_COLUMN][1], *_PAGES)


def _read_struct(data: BytesIO) -> _Struct:
    fields: _Struct = {}
    name = 0
    while header := data.read(1)[0]:
        kind = header & 15
        name = name + (header >> 4) if header >> 4 else _read_integer(data)
        value = kind == _TRUE if kind in (_TRUE, _FALSE) else _read_value(data, kind)
        fields[name] = (kind, value)
    return fields


def _read_value(data: BytesIO, kind: int) -> Any:
    if kind == _STRUCT:
        return _read_struct(data)
    if kind in (_LIST, _SET):
        header = data.read(1)[0]
        count = header >> 4 if header >> 4 < 15 else _read_varint(data)
        return header & 15, [_read_value(data, header & 15) for _ in range(count)]
    if kind == _BINARY:
        return data.read(_read_varint(data))
    if kind in (_I16, _I32, _I64):
        return _read_integer(data)
    if kind in (_TRUE, _FALSE, _BYTE, _DOUBLE):  # in a list a truth value is a byte
        return data.read(8 if kind == _DOUBLE else 1)
    raise ValueError("a footer that is not Parquet's")


def _read_integer(data: BytesIO) -> int:
    number = _read_varint(data)
    return number >> 1 ^ -(number & 1)


def _read_varint(data: BytesIO) -> int:
    number = shift = 0
    while True:
        byte = data.read(1)[0]
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number


def _write_struct(data: bytearray, fields: _Struct) -> None:
    last = 0
    for name, (kind, value) in fields.items():
        if 0 < name - last < 16:
            data.append(name - last << 4 | kind)
        else:
            data.append(kind)
            _write_integer(data, name)
        if kind not in (_TRUE, _FALSE):
            _write_value(data, kind, value)
        last = name
    data.append(0)


def _write_value(data: bytearray, kind: int, value: Any) -> None:
    if kind == _STRUCT:
        _write_struct(data, value)
    elif kind in (_LIST, _SET):
        of, values = value
        data.append(min(len(values), 15) << 4 | of)
        if len(values) >= 15:
            _write_varint(data, len(values))
        for each in values:
            _write_value(data, of, each)
    elif kind in (_I16, _I32, _I64):
        _write_integer(data, value)
    else:
        if kind == _BINARY:
            _write_varint(data, len(value))
        data += value


def _write_integer(data: bytearray, number: int) -> None:
    _write_varint(data, number << 1 ^ number >> 63)


def _write_varint(data: bytearray, number: int) -> None:
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
