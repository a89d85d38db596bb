"""Copies: of releases with rows of a test's own, as they are carried from one machine to another,
and of projects for tests that work in both.
"""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from labelguard.storage.files import SUMS, format_sums, hash_files

NOISE = ("label_probability", "flip_probability", "residual_flip_estimate")


def user(text):
    return [{"role": "user", "content": text}]


def assistant(text):
    return [{"role": "assistant", "content": text}]


def rows_of(pairs, *, chat=False, **noise):
    """A table of that many pairs, with columns of noise, each a number, a list or nothing."""
    texts = {
        name: [f"{name} {row}" for row in range(pairs)] for name in ("prompt", "chosen", "rejected")
    }
    if chat:
        roles = {"prompt": user, "chosen": assistant, "rejected": assistant}
        texts = {name: [roles[name](text) for text in column] for name, column in texts.items()}
    table = pa.table({**texts, "item_id": [str(row) for row in range(pairs)]})
    for name in NOISE:
        values = noise.get(name)
        column = values if isinstance(values, list) else [values] * pairs
        table = table.append_column(name, pa.array(column, pa.float64()))
    return table


def release_copy(directory, table):
    """The directory, with a release of these rows in it, and the sums of its files."""
    directory.mkdir(parents=True)
    pq.write_table(table, directory / "data.parquet")
    privacy = {"epsilon": 3.0, "delta": 1e-5, "unit": "labeler", "adjacency": "replace_labels"}
    card = {"release": "r0001-c0de", "kind": "labels", "privacy": privacy}
    (directory / "card.json").write_text(json.dumps(card))
    (directory / "CARD.md").write_text("# Release r0001-c0de\n")
    write_sums(directory)
    return directory


def copy_project(source, target):
    """The target, with a copy of a project in it that does not say of which: none is refused."""
    shutil.copytree(source, target, symlinks=True)
    for state in (target, Path(target) / ".labelguard"):
        (Path(state) / "id").unlink(missing_ok=True)
    return target


def write_sums(directory):
    """Let SHA256SUMS say what the other files are by now."""
    (directory / SUMS).unlink(missing_ok=True)
    (directory / SUMS).write_text(format_sums(hash_files(directory)))
