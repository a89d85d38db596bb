"""Files that survive a crash (written under another name, flushed to disk, then renamed), and the
SHA-256 of a directory's files, as `sha256sum --check` reads them.

Others are to be trusted: the user's own, where nobody else could have put another. A project is as
good as the files that it is made of: whoever can write its policy chooses ε; whoever can read its
key undoes its pseudonyms. So what is not the user's own is refused.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labelguard.errors import InvalidLabels, LabelguardError, ProjectError
from labelguard.text import suggest

SUMS = "SHA256SUMS"
# How the name of what is begun ends: the next job removes it.
PARTIAL = ".partial"
_ADDRESS = re.compile(r"[a-z][a-z0-9]*://")
# Cards for people: of a release, of a model.
CARDS = ("CARD.md", "TRAINING_CARD.md")
# What a file or a directory of a project may be called: nothing hidden, nothing that a line of
# sums, an archive or a shell would read in another way.
PART = r"(?!\.)[A-Za-z0-9_.=+-]+"
_NAME = re.compile(rf"{PART}(?:/{PART})*")
_OF_FILES = (".csv", ".html", ".json", ".jsonl", ".md", ".parquet", ".png", ".svg", ".tsv")


def check_output_directory(output: Path, example: str) -> None:
    """Raise `LabelguardError` for a file, or a file's name, where a directory is to be written."""
    if output.is_file() or (output.suffix.lower() in _OF_FILES and not output.is_dir()):
        raise LabelguardError(f"{output} names a file; expected a directory, as in -o {example}")


def check_output_file(output: Path, example: str) -> None:
    """Raise `LabelguardError` where no file can be written: at a directory, or below none."""
    if output.is_dir():
        raise LabelguardError(f"{output} is a directory; expected a file, as in -o {example}")
    if not output.absolute().parent.is_dir():
        raise LabelguardError(f"{output.parent} is no directory; make it or choose another -o")


def check_new_output_file(output: Path, example: str) -> None:
    """Raise `LabelguardError` where no new file can be written."""
    check_output_file(output, example)
    if output.exists():
        raise LabelguardError(f"{output} exists; choose another -o")


def fsync_path(path: Path) -> None:
    """Flush a file, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data` so that a crash leaves the old file or the new one, whole."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_path(path.parent)


@contextmanager
def replace_when_done(path: Path, directory: Path | None = None) -> Iterator[Path]:
    """Yield a fresh name in `directory`, or beside `path`, whose file becomes `path` at the end.

    Work may run twice at once, and a reader sees what one of the two wrote, whole.
    """
    temporary = (directory or path.parent) / f".{path.name}.{secrets.token_hex(8)}"
    yield temporary
    temporary.replace(path)


def publish_directory(temporary: Path, final: Path) -> None:
    """Flush every file in `temporary`, then give the directory its name in one step.

    What a crashed attempt left under that name, before it was committed, is removed.
    """
    for path in sorted(temporary.rglob("*")):
        fsync_path(path)
    fsync_path(temporary)
    if final.is_dir():
        shutil.rmtree(final)
    temporary.replace(final)
    fsync_path(final.parent)


def begin_directory(final: Path, *, mode: int) -> Path:
    """Return an empty directory beside `final`, for `finish_directory`.

    Every time another one: a worker of a job that crashed cannot write among what is written now.
    What is being written may lie in its parent, which goes with it.
    """
    final.parent.mkdir(mode=mode, parents=True, exist_ok=True)
    begun = Path(tempfile.mkdtemp(PARTIAL, f"{final.name}.", final.parent)) / "whole"
    begun.mkdir(mode=mode)
    return begun


def finish_directory(begun: Path, final: Path) -> None:
    """Flush and rename what `begin_directory` began."""
    publish_directory(begun, final)
    shutil.rmtree(begun.parent, ignore_errors=True)


def fresh_directory(path: Path, *, mode: int = 0o755) -> Path:
    """Make an empty directory at `path`; what was there is removed."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, mode=mode)
    return path


@contextmanager
def new_directory(output: Path, mode: int = 0o755) -> Iterator[Path]:
    """Yield a directory that becomes `output` at the end, whole and on disk, or not at all.

    It replaces nothing but an empty directory.
    """
    parent = output.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    # Beside `output`, and so on the same file system.
    temporary = Path(tempfile.mkdtemp(".partial", f".{output.name}.", parent))
    try:
        yield temporary
        temporary.chmod(mode)
        for path in (*temporary.rglob("*"), temporary):
            fsync_path(path)
        temporary.rename(output)
        fsync_path(parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def format_sums(hashes: Mapping[str, str]) -> str:
    """Return the text that `sha256sum --check` reads."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))


def hash_file(path: Path) -> str:
    """Return the digest of a file, of which a piece at a time is in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class HashedFile(io.BufferedWriter):
    """A new file, written from start to end; its digest needs no second reading."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "xb"))
        self._sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write bytes."""
        self._sha256.update(data)
        return super().write(data)

    @property
    def digest(self) -> str:
        """Return what `hash_file` would of all that was written."""
        return self._sha256.hexdigest()


def hash_files(directory: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the digest of every file below a directory, by its path in it, with / between the
    parts. Those that are `known` are not read.

    Raises `ProjectError` for a link, anything else that is no plain file, or a name that no release
    may have.
    """
    hashes = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not _NAME.fullmatch(name) or path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ProjectError(f"{name!a} cannot be part of a release: no plain file or name")
        if path.is_file():
            hashes[name] = (known or {}).get(name) or hash_file(path)
    return hashes


def find_changed_file(directory: Path, expected: Mapping[str, str]) -> str | None:
    """Return the first file of a release that is missing, altered or none of its own, or None."""
    sums = hashlib.sha256(format_sums(expected).encode("ascii")).hexdigest()
    files = {**expected, SUMS: sums}
    for name, digest in files.items():
        path = directory / name
        if not path.is_file() or _is_behind_link(path, directory):
            return f"{path} is missing"
        if hash_file(path) != digest:
            return f"{path} was altered since the release was committed"
    for path in sorted(directory.rglob("*")):
        # A link to a directory is none: what it leads to was never hashed.
        is_file = path.is_symlink() or not path.is_dir()
        name = path.relative_to(directory).as_posix()
        if is_file and name not in files and not _is_of_hub(name, path, expected):
            return f"{path} was added since the release was committed"
    return None


def _is_of_hub(name: str, path: Path, expected: Mapping[str, str]) -> bool:
    """Return whether a file is one that a copy from the Hub has beside it, and nothing reads.

    README.md may be the card, once more, and nothing else.
    """
    if name == "README.md" and not path.is_symlink():
        digest = hash_file(path)
        return any(expected.get(card) == digest for card in CARDS)
    return name == ".gitattributes" or name.startswith(".cache/huggingface/")


def _is_behind_link(path: Path, directory: Path) -> bool:
    """Return whether a link stands for the file, or for a directory on the way to it."""
    inside = path.relative_to(directory).parents
    return path.is_symlink() or any((directory / parent).is_symlink() for parent in inside[:-1])


def show_path(path: Path) -> str:
    """Return a path as messages show it (a file name may hold any bytes, even line breaks)."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return text if text.isprintable() else repr(text)[1:-1]


def is_remote(source: str) -> bool:
    """Return whether an input is an address of objects in a store, not a path."""
    return _ADDRESS.match(source) is not None


def find_matching_paths(pattern: str) -> list[Path]:
    """Return the files that a path or a glob names, sorted.

    Raises `InvalidLabels` if there are none, with the one that was probably meant, and for a
    directory.
    """
    path = Path(pattern)
    # Path.glob takes no absolute patterns.
    names = [pattern] if path.exists() else glob.glob(pattern, recursive=True)  # noqa: PTH207
    paths = sorted(map(Path, names))
    if not paths:
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = suggest(show_path(Path(path.name)), [show_path(Path(p.name)) for p in beside])
        raise InvalidLabels(f"{show_path(path)}: no such file{near}")
    for one in filter(Path.is_dir, paths):
        shown = show_path(one)
        raise InvalidLabels(f"{shown} is a directory; name its files, as in '{shown}/*.parquet'")
    return paths


_MOST_LINKS = 40


def check_own_directory(path: Path, kind: type[LabelguardError]) -> None:
    """Raise `kind` for a directory that is not the user's own, or open to anybody else."""
    try:
        status = path.lstat()
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_ISLNK(status.st_mode):
        raise kind(f"{path} is a symbolic link; name the directory that it leads to")
    if not stat.S_ISDIR(status.st_mode):
        raise kind(f"{path} is not a directory")
    _check_owner_and_mode(path, status, 0o077, "700", kind)


def read_own_file(path: Path, kind: type[LabelguardError], *, secret: bool = True) -> bytes:
    """Return the content of a regular file of the user's own, behind no link.

    Nobody else may write it or, if it is `secret`, read it. Raises `kind`, or `FileNotFoundError`.
    """
    try:
        # Without O_NONBLOCK, a FIFO would make us wait for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise kind(f"{path} cannot be read: {why}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise kind(f"{path} is not a file")
        _check_owner_and_mode(path, status, 0o077 if secret else 0o022, "600", kind)
        return file.read()


def read_mounted(path: Path, kind: type[LabelguardError]) -> bytes:
    """Return the content of a file that others provide, such as a mounted secret; links are
    followed.

    Of everything on the way to it, directories and links included, nobody but root and the user may
    be able to put another in its place. Raises `kind`.
    """
    try:
        for step in _steps_to(path):
            status = step.lstat()
            foreign = status.st_uid not in (0, os.geteuid())
            # What others own in a sticky directory they can replace; what we or root own, not.
            fixed = stat.S_ISLNK(status.st_mode) or (
                stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
            )
            if foreign or (status.st_mode & 0o022 and not fixed):
                raise kind(f"{path} is not safe: others can write {step}; see SECURITY.md")
        return step.read_bytes()
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror}") from None


def _steps_to(path: Path) -> Iterator[Path]:
    """Yield every directory and link on the way to a file, from the root on, and the file
    itself.
    """
    here, links = Path("/"), 0
    yield here
    ahead = list(reversed(path.absolute().parts[1:]))
    while ahead:
        name = ahead.pop()
        if name == "..":  # of a real directory: links before it are resolved
            here = here.parent
            continue
        yield here / name
        if not (here / name).is_symlink():
            here = here / name
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = (here / name).readlink()
        here = Path("/") if target.is_absolute() else here
        ahead += reversed([part for part in target.parts if part != "/"])


def _check_owner_and_mode(
    path: Path, status: os.stat_result, others: int, mode: str, kind: type[LabelguardError]
) -> None:
    if status.st_uid != os.geteuid():
        raise kind(
            f"{path} belongs to another user (uid {status.st_uid}, you are {os.geteuid()}); "
            "labelguard uses what is your own only"
        )
    if status.st_mode & others:
        what = "readable by others" if others & 0o044 else "writable by others"
        now = stat.S_IMODE(status.st_mode)
        raise kind(f"{path} is {what} (mode {now:o}); chmod {mode} it")
