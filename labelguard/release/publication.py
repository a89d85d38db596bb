"""A committed release leaves the project: to the Hugging Face Hub, or an annotation tool.

What leaves are the files that were committed, byte for byte, and the card once more as README.md.

The Hub gets them in one commit. Only files that are named are read, none through a link, and only
what has the SHA-256 that was promised is committed. Publishing the same files again changes
nothing, and what was interrupted is completed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labelguard import extras
from labelguard.answers import connector as connectors
from labelguard.errors import LabelguardError, LedgerError
from labelguard.project.opening import OpenProject, Where
from labelguard.project.verification import find_release_fault
from labelguard.release.writer import Release
from labelguard.storage.files import SUMS, format_sums
from labelguard.text import Progress, no_progress

_REPOSITORY = re.compile(r"hf:([A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*)")
# Files up to this size are held in memory while they are sent.
_SMALL = 4 << 20
# What the Hub itself puts into a new repository.
_OF_HUB = {".gitattributes"}


@dataclass(frozen=True)
class PublicFile:
    """A file that may leave, and the SHA-256 that it must have."""

    path: Path
    sha256: str

    def content_or_path(self) -> bytes | str:
        """Return a small file's content, and the path of a large one. A link is refused."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            raise LabelguardError(f"{self.path} cannot be read: {error.strerror}") from error
        with os.fdopen(descriptor, "rb") as file:
            return str(self.path) if os.fstat(descriptor).st_size > _SMALL else file.read()


def send_files(
    files: Mapping[str, PublicFile],
    to: str,
    kind: Literal["dataset", "model"],
    *,
    title: str,
    public: bool,
    progress: Progress,
    others: str = "",
) -> str:
    """Publish files, by their paths there, in a repository `hf:ORG/NAME`; return its address.

    It is one commit, called `title`, to a repository that is private unless `public`. What an
    earlier one published there is replaced. `others` are further places that a message names.
    Raises `LabelguardError` where something else is there, and where the Hub refuses.
    """
    match = _REPOSITORY.fullmatch(to)
    if match is None:
        raise LabelguardError(f"expected hf:ORG/NAME{others}, found {to!a}")
    extras.require_extra("hub", "publishing to the Hugging Face Hub")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api, repository = HfApi(), match[1]
    with _shorten_errors(to):
        progress("asking the Hub", None)
        api.create_repo(repository, repo_type=kind, private=not public, exist_ok=True)
        info = api.repo_info(repository, repo_type=kind)
        if bool(info.private) is public:
            raise LabelguardError(
                f"{to} is {'private' if public else 'public'} already: "
                + ("change that on the Hub first" if public else "take another one, or --public")
            )
        listed = api.list_repo_files(repository, repo_type=kind, revision=info.sha)
        names = set(listed) - _OF_HUB
        if names and (SUMS not in names or any(name.startswith(".") for name in names)):
            raise LabelguardError(f"{to} holds something else; choose another repository")
        progress("uploading to the Hub", None)
        additions = {
            name: CommitOperationAdd(name, file.content_or_path()) for name, file in files.items()
        }
        api.preupload_lfs_files(repository, additions.values(), repo_type=kind)
        for name, addition in additions.items():
            if addition.upload_info.sha256.hex() != files[name].sha256:
                raise LabelguardError(f"{files[name].path} was altered; it was not published")
        deletions = (CommitOperationDelete(name, is_folder=False) for name in names - files.keys())
        api.create_commit(
            repository,
            [*additions.values(), *deletions],
            commit_message=title,
            repo_type=kind,
            parent_commit=info.sha,  # nobody else's commit in between
        )
    return f"{api.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repository}"


@contextmanager
def _shorten_errors(where: str) -> Iterator[None]:
    """Tell in one line what the Hub, or the way to it, refuses."""
    try:
        yield
    except LabelguardError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise LabelguardError(f"{where}: {(lines or [type(error).__name__])[0]}") from error


@dataclass(frozen=True)
class Published:
    """A release that was published."""

    # the release
    release: str
    # where it is
    where: str


def publish(
    release: Release | str,
    to: str,
    *,
    public: bool = False,
    project: Where = None,
    progress: Progress = no_progress,
) -> Published:
    """Publish a committed release of a project: its files, and its card as README.md.

    `release` is an id, which may be shortened, or what `privatize` returned; `to` is
    `hf:ORG/NAME` (a data set of the Hugging Face Hub, private unless `public`), or
    `CONNECTOR:TITLE` for a data set of an annotation tool. Again, it changes nothing, and completes
    what was interrupted. On the Hub another release takes the place of the one before.

    Charges nothing. Raises `LedgerError` for a release that is not committed, or whose files are
    not those that were, `LabelguardError` if something else is at `to`, or it cannot be reached,
    and `ConnectorError` as the connector does.

    Example:
        >>> lg.publish(release, "hf:ORG/NAME", project="study").release == release.id
        True
    """
    opened = OpenProject.open(project)
    identity = release.id if isinstance(release, Release) else release
    record = opened.ledger.releases.find_committed(identity)
    if broken := find_release_fault(opened, [record]):
        raise LedgerError(f"{broken}; nothing was published")
    directory = opened.project.releases / record.id
    name, _, title = to.partition(":")
    if name in opened.project.connectors:
        if public:
            raise LabelguardError(f"--public is for the Hub (hf:ORG/NAME), found {to}")
        push = connectors.open_push(connectors.read_settings(opened.project.connectors, name))
        return Published(record.id, push(directory, title or record.id, progress))
    files = {name: PublicFile(directory / name, digest) for name, digest in record.files.items()}
    sums = hashlib.sha256(format_sums(record.files).encode("ascii")).hexdigest()
    files |= {SUMS: PublicFile(directory / SUMS, sums), "README.md": files["CARD.md"]}
    title = f"Release {record.id}"
    others = " or CONNECTOR:TITLE, of [connectors] in labelguard.toml"
    where = send_files(
        files, to, "dataset", title=title, public=public, progress=progress, others=others
    )
    return Published(record.id, where)
