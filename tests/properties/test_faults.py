"""A full disk, missing rights, damaged pages, a lost server, a wrong clock: an error, no loss.

After each fault the same command, done in peace, ends as if nothing had happened: with the one
release and its single charge.
"""

import os
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import databases, world
from support.crashes import Ring, assert_sound, crash, rounds, seen
from support.crashing import perform
from support.proxy import Proxy
from support.rounds import some

from labelguard.cli.main import main
from labelguard.errors import LedgerError
from labelguard.project.opening import OpenProject
from labelguard.release.privatize import Run
from labelguard.report import overview

SEED = 20260102
SECRET = "Hunter2"
NOBODY = 65534


pytestmark = pytest.mark.usefixtures("same_in_every_process")


def assert_told(end, kinds="LedgerError|ProjectError|KeyProblem"):
    """One line that says what is wrong, and nothing else."""
    assert re.fullmatch(rf"({kinds}): [^\n]+", end["error"]), end
    assert not end["printed"] and not end["signal"]
    assert SECRET not in end["error"] and "worker" not in end["error"]


def assert_finished(ring, project, expected, label):
    ring.finish(project)
    assert seen(project) == expected, label
    assert_sound(project)
    ring.discard(project)


@pytest.mark.quick("first")
@pytest.mark.parametrize("name", ["first", "statistic under a policy", "activation"])
def test_a_disk_that_is_full_from_any_step_on_loses_nothing(name, tmp_path, monkeypatch):
    with rounds("sqlite", name, tmp_path, monkeypatch) as (ring, expected, total):
        for step in some(range(1, total + 1), 50):
            project, _ = ring.copy(f"full at {step}")
            [end] = crash(ring.command | {"project": str(project), "full_at": step})
            if end["error"]:  # at the last steps nothing is left to be written
                assert_told(end)
            assert_finished(ring, project, expected, step)


@pytest.mark.quick("1500")
@pytest.mark.parametrize("size", [0, 1500, 20_000, 80_000])
def test_no_file_can_grow_beyond_a_size(size, tmp_path, monkeypatch):
    with Ring("sqlite", "first", tmp_path, monkeypatch) as ring:
        expected, _ = ring.copy("expected")
        perform(ring.command, expected)
        project, _ = ring.copy("small disk")
        [end] = crash(ring.command | {"project": str(project), "file_size": size})
        assert_told(end)
        assert_finished(ring, project, seen(expected), size)


@pytest.mark.quick("ledger.sqlite3")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can work as somebody else")
@pytest.mark.parametrize(
    "place",
    [
        "ledger.sqlite3",
        ".",
        "releases",
        "released",
        "lock",
    ],
)
def test_what_cannot_be_written_is_named_and_nothing_is_lost(place, tmp_path, monkeypatch):
    with Ring("sqlite", "again", tmp_path, monkeypatch) as ring:
        expected, _ = ring.copy("expected")
        perform(ring.command, expected)
        rehearsal, _ = ring.copy("rehearsal")
        project, _ = ring.copy("read-only")
        for path in (tmp_path, project, *project.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        opened = [parent for parent in project.parents if not parent.stat().st_mode & 0o001]
        for parent in opened:
            parent.chmod(parent.stat().st_mode | 0o011)
        target = project / ".labelguard" / place
        mode = target.stat().st_mode
        target.chmod(mode & ~0o222)
        job = {"project": str(project), "user": NOBODY, "rehearsal": str(rehearsal)}
        [end] = crash(ring.command | job)
        assert_told(end)
        target.chmod(mode)
        for path in (project, *project.rglob("*")):  # nobody works with what is another's
            os.chown(path, os.getuid(), os.getgid())
        assert_finished(ring, project, seen(expected), place)


PAGE = 4096


@pytest.mark.quick("random")
@pytest.mark.parametrize("junk", ["random", "zeros", "ones"])
def test_a_damaged_page_is_found_before_anything_is_charged(junk, tmp_path, monkeypatch):
    rng = random.Random(SEED)
    page = {"random": rng.randbytes(PAGE), "zeros": bytes(PAGE), "ones": b"\xff" * PAGE}[junk]
    with Ring("sqlite", "again", tmp_path, monkeypatch) as ring:
        path = ring.base / ".labelguard" / "ledger.sqlite3"
        whole = path.read_bytes()
        told = databases.dump(f"sqlite:///{path}")
        assert len(whole) % PAGE == 0 and len(whole) > 15 * PAGE
        arguments = ["budget", "verify", "--project", str(ring.base)]
        harmless = 0
        for start in range(PAGE, len(whole), PAGE):
            path.write_bytes(whole[:start] + page + whole[start + PAGE :])
            result = CliRunner().invoke(main, arguments)
            assert isinstance(result.exception, (SystemExit, type(None))), start
            if result.exit_code == 0:  # a page that holds nothing
                assert databases.dump(f"sqlite:///{path}") == told
                harmless += 1
                continue
            assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1, result.stderr
            damaged = path.read_bytes()
            with pytest.raises(LedgerError, match=r"damaged|malformed|cannot be used"):
                perform(ring.command, ring.base)
            assert path.read_bytes() == damaged
        assert harmless <= 2
        path.write_bytes(whole)
        perform(ring.command, ring.base)
        assert_sound(ring.base)


@pytest.mark.quick("<lambda>0", "<lambda>3")
@pytest.mark.parametrize(
    "damage",
    [
        *(lambda data, share=share: data[: int(len(data) * share)] for share in (0.01, 0.3, 0.9)),
        lambda data: data[: -PAGE // 2],
        lambda data: b"",
        lambda data: b"no database at all" * 1000,
        lambda data: b"SQLite format 3\0" + bytes(len(data)),
    ],
)
def test_a_truncated_or_foreign_file_is_refused_and_the_good_one_serves_again(
    damage, tmp_path, monkeypatch
):
    with Ring("sqlite", "again", tmp_path, monkeypatch) as ring:
        path = ring.base / ".labelguard" / "ledger.sqlite3"
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        for arguments in (["budget", "verify"], ["budget", "show"], ["release", "list"]):
            result = CliRunner().invoke(main, [*arguments, "--project", str(ring.base)])
            assert isinstance(result.exception, (SystemExit, type(None)))
            if arguments[-1] == "verify" or result.exit_code:
                assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
        with pytest.raises(LedgerError):
            perform(ring.command, ring.base)
        path.write_bytes(whole)
        perform(ring.command, ring.base)
        assert_sound(ring.base)


def through(url, port):
    """A ledger's URL by way of a proxy, with a password that must not be shown."""
    return re.sub(r"//(\w+)@127\.0\.0\.1:\d+/", rf"//\1:{SECRET}@127.0.0.1:{port}/", url)


def port_of(url):
    found = re.search(r":(\d+)/", url)
    assert found
    return int(found[1])


def cut_line(ring, expected, at, delivered):
    """One round with a line that is cut; whether the command came to its end before that."""
    project, ledger = ring.copy(f"cut at {at} {delivered}")
    with Proxy(port_of(ledger), at, delivered=delivered) as proxy:
        url = through(ledger, proxy.port)
        [end] = crash(ring.command | {"project": str(project), "ledger": url})
        passed = not proxy.is_cut
    if end["error"]:
        assert_told(end, "LedgerError")
    ring.choose(ledger)
    assert_finished(ring, project, expected, (at, delivered))
    return passed


def pieces_of(ring):
    """How many pieces of data a whole command sends to the server."""
    project, ledger = ring.copy("whole")
    with Proxy(port_of(ledger)) as proxy:
        [end] = crash(
            ring.command | {"project": str(project), "ledger": through(ledger, proxy.port)}
        )
        assert not end["error"] and not end["printed"]
        return proxy.pieces


@pytest.mark.slow  # on PostgreSQL
@pytest.mark.parametrize("name", ["first", "statistic under a policy", "activation"])
def test_a_line_that_is_cut_anywhere_loses_nothing_and_charges_nothing_twice(
    name, tmp_path, monkeypatch
):
    with rounds("postgresql", name, tmp_path, monkeypatch) as (ring, expected, _):
        pieces = pieces_of(ring)
        for number, at in enumerate(some(range(1, pieces + 1), 50)):
            cut_line(ring, expected, at, delivered=number % 2 == 1)
        assert cut_line(ring, expected, 2 * pieces, False)


@pytest.fixture
def cluster():
    """A PostgreSQL of our own that may be stopped."""
    try:
        found = databases.Cluster(Path(tempfile.mkdtemp(prefix="lg-pg-")))
        found.start()
    except databases.NoServer as error:
        pytest.skip(str(error))
    yield found
    found.remove()


@pytest.mark.slow  # on PostgreSQL
def test_a_server_that_is_down_or_restarts_in_the_middle_loses_nothing(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(databases, "server", lambda: cluster.url)
    with rounds("postgresql", "first", tmp_path, monkeypatch) as (ring, expected, _):
        project, ledger = ring.copy("down")
        ring.choose(through(ledger, cluster.port))
        cluster.stop()
        job = {"project": str(project), "ledger": through(ledger, cluster.port)}
        [end] = crash(ring.command | job)
        assert_told(end, "LedgerError")
        assert "refused" in end["error"]
        cluster.start()
        assert_finished(ring, project, expected, "down")

        project, ledger = ring.copy("restarted")
        ring.choose(through(ledger, cluster.port))
        draw = Run.draw

        def restart(*arguments):
            cluster.stop()
            cluster.start()
            draw(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "draw", restart)
            with pytest.raises(LedgerError, match="cannot be used") as caught:
                perform(ring.command, project)
        assert SECRET not in str(caught.value) and "\n" not in str(caught.value)
        assert [record.state for record in overview.list_releases(project)] == ["computing"]
        assert_finished(ring, project, expected, "restarted")


@pytest.mark.slow
def test_a_clock_that_jumps_changes_nothing_but_times(tmp_path, monkeypatch):
    hours = iter(random.Random(SEED).choices(range(24), k=1000))
    clocks: list[Callable[[], str]] = [
        lambda: "2026-01-01T00:00:00Z",
        iter(f"{year}-01-01T00:00:00Z" for year in range(2100, 1100, -1)).__next__,
        lambda: f"{1970 + next(hours)}-12-31T23:59:59Z",
    ]
    worlds = []
    with Ring("sqlite", "statistic under a policy", tmp_path, monkeypatch) as ring:
        for number, clock in enumerate(clocks):
            project, _ = ring.copy(f"clock {number}")
            world.fix_clock(monkeypatch, clock)
            perform(ring.command, project)
            ledger = OpenProject.open(project).ledger
            ledger.refund_reserved(ledger.begin_job(), resumed=None)
            perform(ring.command | {"options": ring.command["options"] | {"again": True}}, project)
            assert_sound(project)
            worlds.append(timeless(project))
    assert worlds[0] == worlds[1] == worlds[2]


def timeless(project):
    """What a project holds but times, and what follows from times."""
    tables = databases.dump(f"sqlite:///{project / '.labelguard' / 'ledger.sqlite3'}")
    kept: dict[str, object] = {
        name: tables[name] for name in ("allowances", "charges", "counters", "prices")
    }
    kept["journal"] = [(row[0], row[2]) for row in tables["journal"]]
    kept["releases"] = [(*row[:5], row[6:9]) for row in tables["releases"]]
    for path in project.rglob("data.parquet"):
        kept[str(path.relative_to(project))] = path.read_bytes()
    return kept
