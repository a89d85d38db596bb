"""A labeler who leaves: labels of theirs that can be found wherever they are, and what is left."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support.preferences import ASKED, opinions, pairs

from labelguard.keys.keyring import KeyRing
from labelguard.project.opening import OpenProject
from labelguard.report import overview
from labelguard.storage import blocks

PRICE: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "mechanism": "rr", "uses": 3, "workers": 1}
SET_ASIDE: dict[str, Any] = PRICE | {"bad_rows": "quarantine"}
WHO = "Zuzanna-Weatherwax"
MARK = "a-comment-of-nobody-else"


def names(asked):
    """Ids as in the files; the third labeler has one that is found nowhere by chance."""
    return [WHO if u == 2 else f"worker {u}" for u in asked.labeler]


def labels_table(asked=ASKED, seed=1, *, bad=()):
    """Labels with a comment; the rows `bad` have no time, and tell a secret if WHO gave them."""
    table = pairs(asked, opinions(len(asked), seed))
    who = names(asked)
    comments = [f"{MARK} {i}" if who[i] == WHO else f"fine {i}" for i in range(len(asked))]
    times = ["some day" if i in bad else "2026-01-01" for i in range(len(asked))]
    at = table.column_names.index
    return (
        table.set_column(at("labeler_id"), "labeler_id", pa.array(who))
        .append_column("comment", pa.array(comments))
        .append_column("submitted_at", pa.array(times))
    )


THEIRS = np.flatnonzero(ASKED.labeler == 2)
OTHERS = np.flatnonzero(ASKED.labeler != 2)
BAD = (int(THEIRS[0]), int(THEIRS[3]), int(OTHERS[1]), int(OTHERS[40]))


def key_of(project, labeler=WHO):
    return KeyRing(project.keys).hash_labelers("files", [labeler])


def pseudonym(project, labeler=WHO):
    return blocks.to_hex(key_of(project, labeler)[0])


def ledger_of(project):
    return OpenProject.open(project).ledger


def values(release):
    rows: list[dict[str, Any]] = pq.read_table(release.path / "data.parquet").to_pylist()
    return rows


def remembered(project, labeler=WHO):
    """How many rows of theirs are in private maps, as Parquet alone tells."""
    name = blocks.to_bytes(key_of(project, labeler))
    maps = (
        pq.read_table(path, partitioning=None) for path in project.private_maps.rglob("*.parquet")
    )
    return sum(table["labeler"].to_pylist().count(name) for table in maps)


def assert_sound(project):
    verdict = overview.verify(project.state)
    assert verdict.ok, verdict.fault
