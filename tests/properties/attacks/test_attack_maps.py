"""Attacks on private maps: one that does not count is kept in a backup, or one is being rewritten.

A map that was complete when its release crashed, but not yet marked as drawn, is drawn anew: who
has both sees two answers to one question, for one charge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.preferences import TABLE

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import ProjectError
from labelguard.ledger.charges import Releases
from labelguard.ledger.ledger import Ledger
from labelguard.project import erasure
from labelguard.project.backup import backup
from labelguard.project.project import Project, find
from labelguard.project.restore import restore
from labelguard.report import overview

PRICE: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "max_labels_per_labeler": 20}


class Crash(BaseException):
    """The process ended here."""


def crash(*_: object) -> None:
    raise Crash


def test_a_backup_holds_no_answer_that_will_be_given_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Ledger, "mark_drawn", crash)
        lg.privatize(TABLE, project=project, **PRICE)
    backup(tmp_path / "backup.tar.zst", project=project)
    restore(tmp_path / "backup.tar.zst", tmp_path / "copy", keys=project.keys)
    lg.privatize(TABLE, project=project, **PRICE)
    assert list(project.private_maps.rglob("*.parquet"))
    assert not list(find(tmp_path / "copy").private_maps.rglob("*.parquet"))


def test_a_map_that_is_not_as_it_was_drawn_is_not_backed_up(
    project: Project, tmp_path: Path
) -> None:
    """Else nobody would know of it before the backup is needed."""
    lg.privatize(TABLE, project=project, **PRICE)
    next(project.private_maps.rglob("*.parquet")).unlink()
    with pytest.raises(ProjectError, match="not as it was drawn"):
        backup(tmp_path / "backup.tar.zst", project=project)
    assert not (tmp_path / "backup.tar.zst").exists()


def test_whoever_looks_while_somebody_is_erased_spoils_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    lg.privatize(TABLE, project=project, **PRICE)
    replace_maps, looked = Releases.replace_maps, []

    def watched(*given: Any) -> None:
        """The new files are written, and the ledger is about to be told of them."""
        for command in ("doctor", "budget verify", "release verify"):
            arguments = [*command.split(), "--project", str(project.state)]
            looked.append(CliRunner().invoke(main, arguments).exit_code)
        replace_maps(*given)

    monkeypatch.setattr(Releases, "replace_maps", watched)
    assert erasure.remove_labeler("worker 2", "erased", project).rows_remembered == 12
    assert looked == [0, 0, 0]
    assert overview.verify(project.state).ok
    assert erasure.preview("worker 2", "erased", project).rows_remembered == 0
