"""Files of row groups that were encoded apart are those of one writer, to the last byte."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelguard.release.writer import PARQUET, output_schema
from labelguard.storage.row_groups import join_files

TEXT = pa.string()
CHAT = pa.list_(pa.struct([("role", TEXT), ("content", TEXT)]))


def rows(first, count, content=TEXT, *, questions=False):
    """Rows of a release, each another."""
    numbers = range(first, first + count)
    texts = [f"{number} words" for number in numbers]
    shown = texts if content == TEXT else [[{"role": "user", "content": text}] for text in texts]
    columns = [pa.array(shown, content)] * 3 + [pa.array([f"{n:032x}" for n in numbers])]
    columns += [pa.nulls(count, pa.float64()), pa.array([n % 3 / 7 for n in numbers], pa.float64())]
    columns += [pa.nulls(count, pa.float64())]
    columns += [pa.array(["q"] * count, TEXT)] if questions else []
    return pa.table(columns, schema=output_schema(content, questions=questions))


def write(path, *tables):
    """Write a file of one row group a table (of the default size)."""
    with pq.ParquetWriter(path, tables[0].schema, **PARQUET) as writer:
        for table in tables:
            writer.write_table(table)
    return path


CASES = {
    "one": [rows(0, 9)],
    "several": [rows(0, 5), rows(5, 4000), rows(4005, 1)],
    "many": [rows(3 * number, 3) for number in range(70)],
    "long": [rows(0, 70_000), rows(70_000, 3)],
    "chats": [rows(0, 30, CHAT), rows(30, 2, CHAT)],
    "questions": [rows(0, 30, questions=True), rows(30, 2, questions=True)],
    "none": [rows(0, 0)],
}


@pytest.mark.parametrize("case", CASES)
def test_row_groups_that_are_joined_are_those_of_one_writer(case, tmp_path):
    tables = CASES[case]
    parts = [write(tmp_path / f"{n}.parquet", table) for n, table in enumerate(tables)]
    assert join_files(parts, tmp_path / "joined") == sum(map(len, tables))
    assert (tmp_path / "joined").read_bytes() == write(tmp_path / "one", *tables).read_bytes()
    assert not any(part.exists() for part in parts)


def test_parts_that_are_no_whole_files_are_refused(tmp_path):
    good = write(tmp_path / "good", rows(0, 50)).read_bytes()
    for number, data in enumerate((b"", good[:4], good[:-1], good[:9] + good[-8:], b"x" * 99)):
        (tmp_path / "part").write_bytes(data)
        with pytest.raises((ValueError, OSError)):
            join_files([tmp_path / "part"], tmp_path / f"joined-{number}")
