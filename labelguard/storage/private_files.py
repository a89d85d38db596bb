"""Files that are to be trusted: the user's own, where nobody else could have put another.

A project is as good as the files that it is made of. Whoever can write its policy chooses ε;
whoever can read its key undoes its pseudonyms. So what is not the user's own is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from labelguard.errors import LabelguardError

_MOST_LINKS = 40


def check_directory(path: Path, kind: type[LabelguardError]) -> None:
    """Raise `kind` for a directory that is not the user's own, or open to anybody else."""
    try:
        status = path.lstat()
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_ISLNK(status.st_mode):
        raise kind(f"{path} is a symbolic link; name the directory that it leads to")
    if not stat.S_ISDIR(status.st_mode):
        raise kind(f"{path} is not a directory")
    _check(path, status, 0o077, "700", kind)


def read(path: Path, kind: type[LabelguardError], *, secret: bool = True, most: int = -1) -> bytes:
    """Return the content of a regular file of the user's own, behind no link, or its first `most`
    bytes.

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
        _check(path, status, 0o077 if secret else 0o022, "600", kind)
        return file.read(most)


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


def _check(
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
