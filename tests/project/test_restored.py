"""What a restored project must not forget, and must still be able to do."""

from typing import Any

import pyarrow as pa
import pytest
from support.deaths import killed_in
from support.lives import put_into_force
from support.releases import make_release

import labelguard as lg
from labelguard.errors import PolicyError
from labelguard.project import linking, restore
from labelguard.project.backup import backup
from labelguard.project.project import find

PRICE: dict[str, Any] = {"epsilon": 1, "delta": 1e-5, "mechanism": "rr", "uses": 3}


def labels(*rows):
    """Rows of (labeler, item, label)."""
    who, item, label = zip(*rows, strict=True)
    return pa.table(
        {
            "labeler_id": list(who),
            "prompt": [f"prompt {n}" for n in item],
            "response_a": ["one"] * len(rows),
            "response_b": ["two"] * len(rows),
            "label": [float(value) for value in label],
        }
    )


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project whose keys are apart, with a backup beside it."""
    monkeypatch.setenv("LABELGUARD_KEYS", str(tmp_path / "keys"))
    place = lg.init(tmp_path / "place")
    make_release(labels(("x", 1, 1)), project=place, **PRICE)
    backup(tmp_path / "backup.tar.zst", project=place)
    return place


def test_a_restore_that_crashed_in_peace_is_taken_up(place, tmp_path):
    saved = tmp_path / "backup.tar.zst"
    place.state.parent.rename(tmp_path / "lost")
    for step in ("_move_into_place", "publish_directory"):  # before all is published, and after
        with killed_in(restore, step):
            restore.restore(saved, tmp_path / "again", nothing_since=True)
    assert restore.restore(saved, tmp_path / "again", nothing_since=True).complete


def test_nobody_is_linked_after_charges_may_have_been_forgotten(tmp_path):
    place = lg.init(tmp_path / "place")
    put_into_force(place, "p", "rr:uses=5,block=1")
    backup(tmp_path / "backup.tar.zst", project=place)
    make_release(labels(("x", 1, 1), ("y", 1, 0)), mechanism="rr", project=place)
    with pytest.raises(PolicyError, match="before the first charge of either"):
        linking.link_two_ids("x", "y", place)
    restore.restore(tmp_path / "backup.tar.zst", tmp_path / "back", keys=place.keys)
    with pytest.raises(PolicyError, match="nobody can be linked any more"):
        linking.link_two_ids("x", "y", find(tmp_path / "back"))
