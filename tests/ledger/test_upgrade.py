"""Projects that 0.3.0 made: every later version reads them, or brings them to tables of its own.

`tests/golden/project-0.3.0.tar.xz` is one, with what 0.3.0 said of it. It is made once for a
version whose ledger is new: UPDATE_FROZEN_PROJECT=1 pytest tests/ledger/test_upgrade.py.
"""

import io
import json
import os
import tarfile
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.databases import EACH, on
from support.next_version import run_next
from support.preferences import opinions, pairs, public

import labelguard as lg
from labelguard.errors import LedgerError
from labelguard.ledger import schema
from labelguard.ledger.journal import Witness
from labelguard.project import restore
from labelguard.project.opening import OpenProject, upgrade
from labelguard.project.project import find
from labelguard.report import overview

FIXTURE = Path(__file__).parents[1] / "golden" / "project-0.3.0.tar.xz"
USES, RELEASES = 5, 2


def table():
    asked = public(labelers=4, per_labeler=5)
    return pairs(asked, opinions(len(asked), 1))


def facts(home):
    """What each labeler has spent, and the digests of released files."""
    names = sorted(set(table()["labeler_id"].to_pylist()))
    spent = {str(name): asdict(overview.read_labeler_budget(str(name), home)) for name in names}
    released = {r.id: r.files for r in OpenProject.open(home).ledger.releases.all()}
    return json.loads(json.dumps({"spent": spent, "released": released}, default=str))


def make_fixture(directory):
    home = lg.init(directory)
    for _ in range(RELEASES):
        lg.privatize(table(), mechanism="rr", epsilon=3, delta=1e-5, uses=USES, project=home)
    with tarfile.open(FIXTURE, "w:xz") as archive:
        archive.add(home.state, home.state.name, filter=_anonymous)
        known = json.dumps(facts(home)).encode()
        entry = tarfile.TarInfo("facts.json")
        entry.size = len(known)
        archive.addfile(entry, io.BytesIO(known))


def _anonymous(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


@pytest.fixture(params=EACH)
def project(request, tmp_path, monkeypatch):
    """The project of 0.3.0, its ledger on each database, and what was known of it."""
    if os.environ.get("UPDATE_FROZEN_PROJECT"):
        make_fixture(tmp_path / "made")
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="tar")
    known = json.loads((tmp_path / "facts.json").read_text("utf-8"))
    home = find(tmp_path)
    with on(request.param, tmp_path, monkeypatch) as url:
        if url:
            [(number, digest), *_] = Witness(home.witnesses).entries()
            file = home.state / "ledger.sqlite3"
            restore.copy_ledger_to_database(url, file, (number, digest))
            file.unlink()
        yield find(tmp_path), known


def test_a_project_of_0_3_0_is_read_and_goes_on(project):
    home, known = project
    assert facts(home) == known
    assert overview.verify(home.state).ok
    assert upgrade(home).before == schema.VERSION
    lg.privatize(table(), mechanism="rr", epsilon=3, delta=1e-5, uses=USES, project=home)
    assert overview.verify(home.state).ok


def test_an_upgrade_is_made_whole_or_not_at_all_and_forgets_nothing(project, tmp_path):
    home, known = project
    where = ("--project", str(home.state))
    upgrades, verifies = ("project", "upgrade", *where), ("budget", "verify", *where)
    name = next(iter(known["spent"]))
    pq.write_table(table(), tmp_path / "labels.parquet")
    files = (str(tmp_path / "labels.parquet"), "-o", str(tmp_path / "third"))
    release = ("privatize", *files, "--mechanism", "rr", "--yes", *where)

    assert run_next(upgrades, killed=True) is None
    assert facts(home) == known  # and this version reads it still
    before = OpenProject.open(home).ledger
    epoch = before.begin_job()
    shows = ("budget", "labeler", name, "--json", *where)
    codes, printed = zip(
        *run_next(verifies, upgrades, upgrades, shows, release, verifies), strict=True
    )
    assert codes == (1, 0, 0, 0, 0, 0), printed
    assert "labelguard project upgrade" in printed[0]
    assert f"it had {schema.VERSION}" in printed[1] and "already" in printed[2]
    assert json.loads(printed[3])["allowances"] == known["spent"][name]["allowances"]

    with pytest.raises(LedgerError, match="another job has begun"), before.transaction(epoch):
        pass
    for act in (OpenProject.open, upgrade):
        with pytest.raises(LedgerError, match="use labelguard"):
            act(home)


def test_a_ledger_that_does_not_hold_is_not_upgraded(project):
    home, _ = project
    Witness(home.witnesses).replace(99, "0" * 64)
    [(code, printed)] = run_next(("project", "upgrade", "--project", str(home.state)))
    assert code == 1 and "older copy" in printed
    with pytest.raises(LedgerError, match="older copy"):  # of this version's tables
        OpenProject.open(home)
