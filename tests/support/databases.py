"""Fresh databases for ledgers under test: SQLite files, and PostgreSQL where there is a server."""

import contextlib
import functools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.copies import copy_project

from labelguard.project.project import find

KINDS = ("sqlite", "postgresql")
# The same; PostgreSQL is slow: each of its statements is waited for.
#
# In every run it has one test of the ledger, of the inbox and of jobs at once.
EACH = ("sqlite", pytest.param("postgresql", marks=pytest.mark.slow))
_SERVER = "127.0.0.1:5432"
_in_use: set[str] = set()


@contextlib.contextmanager
def fresh(kind, directory):
    """The URL of an empty database that is gone afterwards; skips where there is no server."""
    if kind == "sqlite":
        yield f"sqlite:///{directory / 'ledger.sqlite3'}"
        return
    with _created() as url:
        yield url


@contextlib.contextmanager
def copied(url):
    """A copy of a PostgreSQL database; who is connected to it is put out, as copying asks."""
    base, _, name = url.rpartition("/")
    others = f"FROM pg_stat_activity WHERE datname = '{name}'"
    _command(base, f"SELECT pg_terminate_backend(pid, 5000) {others}")
    with _created(name) as copy:
        yield copy


@contextlib.contextmanager
def _created(template="template1"):
    base, name = server(), f"lg_{uuid.uuid4().hex}"
    _command(base, f'CREATE DATABASE {name} TEMPLATE "{template}"')
    try:
        yield f"{base}/{name}"
    finally:
        _command(base, f"DROP DATABASE {name} WITH (FORCE)")


@contextlib.contextmanager
def on(kind, directory, patch):
    """LABELGUARD_LEDGER_URL names an empty database, unless it is to be the project's own file."""
    if kind == "sqlite":
        yield ""
        return
    # Not in a context of its own: what is set on top would come back once that has ended.
    with fresh(kind, directory) as url:
        patch.setenv("LABELGUARD_LEDGER_URL", url)
        try:
            yield url
        finally:
            patch.delenv("LABELGUARD_LEDGER_URL", raising=False)


@contextlib.contextmanager
def copy_of(project, url, directory, patch):
    """A copy of a project; of its database too, if it has one apart: see `on` for `url`."""
    copy_project(project.state, directory / project.state.name)
    with copied(url) if url else contextlib.nullcontext("") as copy:
        patch.setenv("LABELGUARD_LEDGER_URL", copy)
        yield find(directory)


def server():
    """URL of a PostgreSQL server where databases can be made, without a database's name."""
    found = _running() or _throwaway()
    if not found.startswith("postgresql"):
        pytest.skip(found)
    _in_use.add(found)
    return found


def lost():
    """Say which server of `server` no longer answers; None where each does."""
    for base in _in_use:
        try:
            _command(base, "SELECT 1")
        except sa.exc.OperationalError:
            address = base.partition("@")[2]
            return f"PostgreSQL at {address} went away; start it and run the tests again"
    return None


@functools.cache
def _running():
    """The server at 127.0.0.1:5432, if it lets us in without a password."""
    for user in ("postgres", "root"):
        base = f"postgresql+psycopg://{user}@{_SERVER}"
        with contextlib.suppress(sa.exc.SQLAlchemyError, ModuleNotFoundError):
            _command(base, "SELECT 1")
            return base
    return None


@functools.cache
def _throwaway():
    """A cluster of our own until the tests end; or why there is none."""
    try:
        cluster = Cluster(Path(tempfile.mkdtemp(prefix="lg-pg-")))
    except NoServer as error:
        return str(error)
    import atexit

    atexit.register(cluster.remove)
    cluster.start()
    return cluster.url


class NoServer(Exception):
    """PostgreSQL's programs are not installed, or will not run here."""


class Cluster:
    """A PostgreSQL cluster of its own, that can be started and stopped."""

    def __init__(self, directory):
        """Make a cluster in an empty directory. Raises `NoServer`."""
        self._directory, self._data = directory, directory / "data"
        places = [*map(str, Path("/usr/lib/postgresql").glob("*/bin")), os.environ["PATH"]]
        self._path = os.pathsep.join(places)
        if not shutil.which("initdb", path=self._path):
            raise NoServer(f"no PostgreSQL at {_SERVER}, and no initdb to make one")
        self._user: str | None = None
        if os.geteuid() == 0:  # initdb refuses root
            try:
                who = pwd.getpwnam("postgres")
            except KeyError:
                raise NoServer("PostgreSQL does not run as root, and no user postgres") from None
            self._user = who.pw_name
            os.chown(directory, who.pw_uid, who.pw_gid)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "-N")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    @property
    def url(self):
        """Its URL, without a database's name."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}"

    def start(self):
        """Start it and wait until it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self._directory} -F"
        log = str(self._directory / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", log, "-o", options, "start")

    def stop(self):
        """Stop it as a crash does: no connection is asked."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    def remove(self):
        """Stop it, if it runs, and delete it."""
        with contextlib.suppress(NoServer):
            self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, program, *arguments):
        found = shutil.which(program, path=self._path) or program
        done = subprocess.run(
            [found, *arguments],
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a pipe would be kept open by the server
            stderr=subprocess.DEVNULL,
        )
        if done.returncode:
            raise NoServer(f"{found} failed with {done.returncode}")


def dump(url):
    """Every table of a ledger, in order, on either database."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            return {
                name: sorted(
                    (tuple(row) for row in connection.exec_driver_sql(f"SELECT * FROM {name}")),
                    key=repr,
                )
                for name in sorted(sa.inspect(connection).get_table_names())
            }
    finally:
        engine.dispose()


def _command(base, statement):
    engine = sa.create_engine(
        f"{base}/postgres", isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 3}
    )
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()
