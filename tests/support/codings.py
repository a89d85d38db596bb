"""What tests say of labels that are numbers: 1 means the first response in their tables."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from labelguard.budget.label_values import LabelValues, is_number
from labelguard.inputs.pairs import read_public_pairs

NUMBERS = "1-0"
# The same as a part of a `Reading`, and as words of a command.
CODED = LabelValues.parse(NUMBERS)
OPTION = ("--label-values", NUMBERS)
COUNTED = "first=0"


def choose_coding(source):
    """Return the coding of a table's, a file's or rows' labels: None where these are words.

    Choices count from 0.
    """
    if isinstance(source, list | tuple):
        rows = [one for one in source if isinstance(one, dict)]
        labels = [row["label"] for row in rows if row.get("label") is not None]
        codings = map(choose_coding, [{"label": labels}] if labels else source)
        return next(filter(None, codings), None)
    if isinstance(source, dict):
        return _of_values(source["label"]) if "label" in source else _of_names(source)
    if isinstance(source, str | Path):
        path = Path(source)
        paths = [path] if path.exists() or not path.name else path.parent.glob(path.name)
        return next(filter(None, map(choose_coding, map(_read_first, paths))), None)
    if hasattr(source, "features"):  # a `datasets.Dataset`
        return choose_coding(source[:20])
    if hasattr(source, "__arrow_c_stream__"):
        table = pa.table(source)
        kind = table.schema.field("label").type if "label" in table.column_names else None
        if kind is None or pa.types.is_dictionary(kind) or pa.types.is_large_string(kind):
            return _of_names(table.column_names)
        return _of_values(table["label"].to_pylist()) if kind == pa.string() else NUMBERS
    return None


def choose_coding_by_names(names):
    """Return the coding of a table with columns of these names: whatever its labels are."""
    return NUMBERS if "label" in names else _of_names(names)


def choose_values(source):
    """Return the same as a part of a `Reading`: the default where labels are words."""
    return LabelValues.parse(choose_coding(source) or "")


def read_pairs(source, **options):
    """Return the pairs of an input, whose labels are named a coding and not read."""
    return read_public_pairs(source, **{"label_values": choose_coding(source)} | options)


def _of_names(names):
    return COUNTED if {"choice", "responses"} <= {*names} else None


def _of_values(labels):
    given = labels if isinstance(labels, list) else [labels]
    first = next((one for one in given if one not in (None, "")), "")
    return NUMBERS if is_number(str(first)) or isinstance(first, bool) else None


def _read_first(path):
    """Return what tells how labels are given in a file, if it is one that tells."""
    if not path.is_file():
        return None
    if path.suffix == ".parquet":
        try:
            return pq.read_schema(path).empty_table()
        except OSError:  # a damaged file
            return None
    lines = path.read_bytes()[: 1 << 16].decode(errors="replace").splitlines()
    if path.suffix == ".csv":
        return list(csv.DictReader(lines[:20]))
    if path.suffix == ".jsonl":
        try:
            return [json.loads(line) for line in lines[:20]]
        except ValueError:
            return None
    return None
