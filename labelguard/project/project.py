"""A labelguard project: the directory `.labelguard` with policies, ledger, keys and releases.

It is found like a git repository: in the working directory or one of its parents, unless
`--project` or LABELGUARD_PROJECT names it; one that this user did not make must be named. It never
lies beside an output, because fresh keys and an empty ledger per output would silently reset every
labeler's budget.

An archive can hold a `.labelguard` with keys, policy and ceiling of whoever packed it; unpacked, it
is the user's own. So a project found upwards counts only if its id, which nobody else can guess, is
in a list in the user's state directory; any other must be named. The list also tells where each
was made: a restore must not take the keys of one that lives.

File locks are here too, and waiting for a project that another job holds instead of `ProjectBusy`
at once:

    with waiting():
        privatize(...)

It waits without limit; an interrupt ends it, and nothing was begun.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import sleep as pause
from typing import Any, Self, TypeVar
from urllib.parse import quote, unquote_to_bytes

from filelock import lock_descriptor
from platformdirs.unix import Unix

from labelguard.errors import NoProject, ProjectBusy, ProjectError
from labelguard.keys import keyring
from labelguard.storage.files import check_own_directory, read_own_file, write_atomically
from labelguard.text import suggest_misspelled_keywords

R = TypeVar("R")
_PAUSE = 0.5
_say: ContextVar[Callable[[str], None] | None] = ContextVar("waiting", default=None)


@contextlib.contextmanager
def waiting(say: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Let jobs that are begun in here wait until the project is free; `say` is told if one does.

    Example:
        >>> study = lg.init("study")
        >>> with lg.waiting(print):
        ...     made = lg.privatize(
        ...         "labels.parquet", mechanism="rr", label_values="1-0", once=True, project=study
        ...     )
    """
    before = _say.set(say)
    try:
        yield
    finally:
        _say.reset(before)


def retry_until_free(hold: Callable[[], R]) -> R:
    """Return the result of `hold`; under `waiting`, call it until it raises no `ProjectBusy`."""
    say = _say.get()
    try:
        return hold()
    except ProjectBusy:
        if say is None:
            raise
    say("waiting for another labelguard job to end")
    while True:
        pause(_PAUSE)
        with contextlib.suppress(ProjectBusy):
            return hold()


@contextlib.contextmanager
def file_lock(path: Path, flags: int, busy: str) -> Iterator[None]:
    """Lock a file or a directory, opened with `flags`.

    Raises `ProjectBusy`, saying `busy`, at once if another process or thread holds it, `OSError` if
    it cannot be opened.
    """
    descriptor = os.open(path, flags, 0o600)
    try:
        if not lock_descriptor(descriptor, blocking=False):
            raise ProjectBusy(busy)
        yield
    finally:
        os.close(descriptor)


STATE = ".labelguard"
CONFIG = "labelguard.toml"
_WORK, _ID = "work", "id"
# In the list of projects: one that came from elsewhere, and was named.
_NAMED = "named"
_IDENTITY = re.compile(rb"[0-9a-f]{32}")
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
_TABLES = ("connectors", "ingest", "hook", "organisation")


@dataclass(frozen=True)
class Project:
    """Paths and settings of one project; holds no secret. `job` names the one that holds it.

    Example:
        >>> study = lg.init("study")
        >>> study.keys.name, study.releases.name
        ('keys', 'releases')
    """

    state: Path
    namespace: str = "files"
    columns: Mapping[str, str] = field(default_factory=dict)
    job: str = ""
    # `[connectors]` as it stands there, see `configuration.project_file`; so `ingest`, `hook`
    connectors: Mapping[str, Any] = field(default_factory=dict, repr=False)
    ingest: Mapping[str, Any] = field(default_factory=dict)
    hook: Mapping[str, Any] = field(default_factory=dict)
    # `[project]`: its name, and whom to ask
    about: Mapping[str, str] = field(default_factory=dict)
    # who processes labels, and why
    organisation: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Project({str(self.state.parent if self.state.name == STATE else self.state)!r})"

    @property
    def keys(self) -> Path:
        """Directory of the project's secrets."""
        return keyring.find_keys_directory(self.state)

    @property
    def ledger_url(self) -> str:
        """SQLAlchemy URL of the ledger."""
        return read_ledger_variable() or f"sqlite:///{self.state / 'ledger.sqlite3'}"

    def list_unknown_releases(self, known: Iterable[str]) -> list[str]:
        """Return releases on disk that are not among those the ledger knows."""
        on_disk = {
            path.name
            for directory in (self.releases, self.private_maps)
            for path in directory.glob("r[0-9]*")
            if not path.suffix
        }
        return sorted(on_disk - set(known))

    @property
    def releases(self) -> Path:
        """Public releases, one directory each."""
        return self.state / "releases"

    @property
    def private_maps(self) -> Path:
        """PRIVATE maps of released labels, one directory per release."""
        return self.state / "released"

    @property
    def labels(self) -> Path:
        """Segments of raw answers that were ingested, sealed."""
        return self.state / "labels"

    @property
    def jobs(self) -> Path:
        """The directories of jobs of `retrain`: what each did and is about to do."""
        return self.state / "jobs"

    @property
    def stages(self) -> Path:
        """Finished stages of PROPS releases and checkpoints of training runs that are under way, a
        directory each, and who works on one without holding the project (see `claim`). Released
        labels, public texts and what was noised only.
        """
        return self.state / "props"

    def saved_rows(self, release_id: str) -> Path:
        """Public texts and rows as drawn of a release that is under way (see `release.drawn`)."""
        return self.stages / release_id / "kept"

    @property
    def work(self) -> Path:
        """Scratch space of the running job, removed when a job starts and when it ends.

        No two jobs have the same: workers of one that crashed may still write into theirs.
        """
        return self.state / _WORK / self.job

    @property
    def quarantine(self) -> Path:
        """Rows that `--bad-rows quarantine` set aside (mode 0600)."""
        return self.state / "quarantine"

    @property
    def outside(self) -> Path:
        """PRIVATE: which answers of tools had a label outside the domain (mode 0600)."""
        return self.state / "outside-domain.jsonl"

    @contextlib.contextmanager
    def lock(self) -> Iterator[Self]:
        """The project, held for one job; a second job gets `ProjectBusy` at once.

        Who lets it go and has more to do (`claim`) keeps nothing of the scratch space: that is gone
        before anybody else holds the project, and raw labels with it.
        """
        with contextlib.ExitStack() as stack:
            busy = f"another labelguard job works in {self.state}; run this again when it is done"
            try:
                stack.enter_context(file_lock(self.state / "lock", _LOCK, busy))
            except OSError as error:
                why = "lock is a symbolic link" if error.errno == errno.ELOOP else error.strerror
                raise ProjectError(
                    f"the project at {self.state} cannot be written: {why}"
                ) from None
            try:  # only who holds the project may clear its scratch space
                self._remove_crash_leftovers()
                yield replace(self, job=secrets.token_hex(8))
            finally:
                shutil.rmtree(self.state / _WORK, ignore_errors=True)

    @contextlib.contextmanager
    def claim(self, release_id: str) -> Iterator[Path]:
        """A release that is worked on even when the project is let go; the directory for it.

        Only who holds the project claims a release, and only then is its directory removed, so that
        nobody's is while they work. Raises `ProjectBusy` if another process works on it.
        """
        self.stages.mkdir(mode=0o700, exist_ok=True)
        with file_lock(self._find_claim_lock(release_id), _LOCK, _claimed_message(release_id)):
            directory = self.stages / release_id
            directory.mkdir(mode=0o700, exist_ok=True)
            yield directory

    def check_free(self, release_id: str) -> None:
        """Raise `ProjectBusy` if another process works on a release that it claimed."""
        if self._find_claim_lock(release_id).exists():
            with file_lock(self._find_claim_lock(release_id), _LOCK, _claimed_message(release_id)):
                pass

    def clear_stages(self, release_id: str) -> None:
        """Remove a release's directory of stages; only for who holds the project and claims it."""
        shutil.rmtree(self.stages / release_id, ignore_errors=True)
        self._find_claim_lock(release_id).unlink(missing_ok=True)

    def _find_claim_lock(self, release_id: str) -> Path:
        return self.stages / f"{release_id}.lock"

    def _remove_crash_leftovers(self) -> None:
        """Remove what crashed jobs left half-written; nothing of it was ever released."""
        shutil.rmtree(self.state / _WORK, ignore_errors=True)
        for directory in (self.releases, self.private_maps):
            for partial in directory.glob("*.partial"):
                shutil.rmtree(partial, ignore_errors=True)


def read_ledger_variable() -> str:
    """Return LABELGUARD_LEDGER_URL, without the line's end that a file of it may have."""
    return os.environ.get("LABELGUARD_LEDGER_URL", "").strip()


def _claimed_message(release_id: str) -> str:
    return f"release {release_id} is being computed by another process; it ends by itself"


@suggest_misspelled_keywords
def find(directory: str | Path | None = None) -> Project:
    """Return the project named by `directory` or LABELGUARD_PROJECT, else the nearest one upwards.

    Functions that take `project=` find it alike, so that a path is enough there.

    Raises `NoProject` if there is none, `ProjectError` for one that is not the user's own or open
    to others and, unless it was named, for one that this user did not make on this machine.

    Example:
        >>> made = lg.init("study")
        >>> lg.find("study").state.samefile(made.state)
        True
    """
    named = directory or os.environ.get("LABELGUARD_PROJECT")
    if named:
        for state in (Path(named) / STATE, Path(named)):
            try:
                if (state / CONFIG).is_file():
                    return _load_project(state)
            except PermissionError as error:
                raise ProjectError(f"{state} cannot be looked into: {error.strerror}") from None
        raise NoProject(f"{named} holds no labelguard project; make one: labelguard init {named}")
    here = Path.cwd()
    for parent in (here, *here.parents):
        if (parent / STATE / CONFIG).is_file():
            project = _load_project(parent / STATE)
            if not is_registered(project.state):
                raise ProjectError(
                    f"{project.state} was not made by you on this machine: its policy and its keys "
                    f"may be anybody's; if you trust it, name it: --project {parent}, or "
                    "LABELGUARD_PROJECT"
                )
            return project
    raise NoProject(
        f"no labelguard project in {here} or above; make one (labelguard init) "
        "or name one (--project)"
    )


def _load_project(state: Path) -> Project:
    from labelguard.configuration import project_file

    path = state / CONFIG
    check_own_directory(state, ProjectError)
    try:
        data = read_own_file(path, ProjectError, secret=False)
    except OSError as error:
        raise ProjectError(f"{path} cannot be read: {error.strerror}") from None
    settings = project_file.read_project_file(data, str(path))
    inputs = settings.get("input", {})
    namespace = inputs.get("source", project_file.InputTable().source)
    tables = {name: settings.get(name, {}) for name in _TABLES}
    tables["about"] = settings.get("project", {})
    _refuse_copy(state)
    return Project(state.resolve(), namespace, inputs.get("columns", {}), **tables)


def register_project(state: Path, place: Path) -> None:
    """Give a project an id, and remember it and the `place` where it will be.

    Without a home, it will have to be named.
    """
    identity = keyring.random_bytes(16).hex()
    write_atomically(state / _ID, f"{identity}\n".encode(), mode=0o600)
    _append_to_registry(identity.encode(), place)


def _append_to_registry(identity: bytes, place: Path, *, named: bool = False) -> None:
    """List a place of a project; of one that was only `named`, no more than that it was here."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _find_registry_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            words = [identity.decode(), quote(os.fsencode(place.absolute())), *[_NAMED] * named]
            file.write(f"{' '.join(words)}\n".encode())


def _refuse_copy(state: Path) -> None:
    """Raise `ProjectError` for a copy of a project that still is where it was made or moved to.

    One that was moved is listed at its new place. Names of one directory are one place.
    """
    try:
        identity = read_identity(state)
        made = [place for known, place in _read_registry() if known == identity]
        places = made or [place for known, place in _read_registry(_NAMED) if known == identity]
    except (OSError, ProjectError):  # a home that is another user's; the project was named
        return
    # What whoever packed a project wrote as its id goes into the list only if it can be one.
    if not _IDENTITY.fullmatch(identity) or (places and _is_same_directory(places[-1], state)):
        return
    for place in places:
        if _is_same_directory(place, state):
            continue
        there = b""
        with contextlib.suppress(OSError, ProjectError):  # gone, or somebody else's
            there = read_identity(place)
        if there == identity:
            raise ProjectError(
                f"{state} is a copy of {place}: both would spend the same budget; remove one, or "
                "restore a backup (labelguard project restore)"
            )
    _append_to_registry(identity, state, named=not made)


def _is_same_directory(place: Path, state: Path) -> bool:
    try:
        return place.samefile(state)
    except OSError:
        return False


def read_identity(state: Path) -> bytes:
    """Return the id of the project at `state`, of which a restored one has another; b"" if none."""
    with contextlib.suppress(FileNotFoundError):
        return read_own_file(state / _ID, ProjectError, secret=False).strip()
    return b""


def is_registered(state: Path) -> bool:
    """Return whether the project at `state` was made or restored here by this user."""
    try:
        identity = read_identity(state)
        return len(identity) == 32 and identity in {known for known, _ in _read_registry()}
    except ProjectError:
        return False


def _read_registry(*marks: str) -> list[tuple[bytes, Path]]:
    """Return ids of projects with their places, in the order in which they came.

    Of those that this user made or restored here; or of those with these `marks`.
    """
    try:
        listed = read_own_file(_find_registry_file(), ProjectError, secret=False).splitlines()
    except (FileNotFoundError, RuntimeError):
        return []
    words = [line.split() for line in listed]
    ends = [mark.encode() for mark in marks]
    return [
        (each[0], Path(os.fsdecode(unquote_to_bytes(each[1]))))
        for each in words
        if len(each) == 2 + len(ends) and each[2:] == ends
    ]


def format_registry_path() -> str:
    """Return where this user's projects are listed."""
    with contextlib.suppress(RuntimeError):
        return str(_find_registry_file())
    return "~/.local/state"


def _find_registry_file() -> Path:
    """In XDG_STATE_HOME or ~/.local/state; `RuntimeError` if the user has no home."""
    return Unix("labelguard").user_state_path / "projects"
