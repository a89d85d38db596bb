"""What tests say of labels that are numbers: 1 means the first response in their tables."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NUMBERS = "1-0"


def choose_coding(source):
    """Return the coding of a table's, a file's or rows' column `label`: None where it has words."""
    if isinstance(source, list | tuple):
        codings = map(choose_coding, source)
        return next(filter(None, codings), None)
    if isinstance(source, dict):
        return NUMBERS if isinstance(source.get("label"), int | float) else None
    if isinstance(source, str | Path):
        return choose_coding(_read_first(Path(source)))
    if hasattr(source, "__arrow_c_stream__"):
        schema = pa.table(source).schema
        kind = schema.field("label").type if "label" in schema.names else pa.string()
        return None if pa.types.is_string(kind) or pa.types.is_large_string(kind) else NUMBERS
    return None


def _read_first(path):
    """Return what tells the type of labels in a file, if it is one that tells."""
    if not path.is_file():
        return None
    if path.suffix == ".parquet":
        return pq.read_schema(path).empty_table()
    lines = path.read_bytes()[: 1 << 16].decode(errors="replace").splitlines()[:2]
    if path.suffix == ".csv" and len(lines) == 2:
        row = dict(zip(lines[0].split(","), lines[1].split(","), strict=False))
        number = row.get("label", "").replace(".", "").isdigit()
        return {"label": float(row["label"])} if number else None
    if path.suffix == ".jsonl" and lines:
        try:
            return json.loads(lines[0])
        except ValueError:
            return None
    return None
