"""Places that files are published to: a directory, S3, the Hugging Face Hub.

Only files that are named are read, none through a link, and only what has the SHA-256 that was
promised stays there. Publishing the same files again changes nothing, and what was interrupted is
completed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.storage.files import SUMS, check_output_directory, hash_files, new_directory
from labelguard.text import Progress

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

# A repository of the Hub holds a data set or a model.
RepositoryKind: TypeAlias = Literal["dataset", "model"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+_.-]*):(.*)", re.DOTALL)
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*")
_BUCKET = re.compile(
    r"s3://(?P<path>[a-z0-9][a-z0-9.-]{2,62}(?:/[A-Za-z0-9_=+-][A-Za-z0-9_.=+-]*)+)/?"
)
_BLOCK = 1 << 20
# Files up to this size are held in memory while they are sent to the Hub.
_SMALL = 4 << 20
# What the Hub itself puts into a new repository.
_OF_HUB = {".gitattributes"}


@dataclass(frozen=True)
class PublicFile:
    """A file that may leave, and the SHA-256 that it must have."""

    path: Path
    sha256: str

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open it, unless it is a link."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            raise LabelguardError(f"{self.path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def copy_to(self, target: BinaryIO) -> None:
        """Copy it; raise `LabelguardError` if what was copied is not what was promised."""
        digest = hashlib.sha256()
        with self.open() as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                target.write(block)
        self.check(digest.hexdigest())

    def check(self, digest: str) -> None:
        """Raise `LabelguardError` for a content of another SHA-256."""
        if digest != self.sha256:
            raise LabelguardError(f"{self.path} was altered; it was not published")


def split_destination(to: str) -> tuple[str, str]:
    """Return the scheme of a destination, "" of a directory, and what follows it."""
    match = _SCHEME.fullmatch(to)
    return (match[1], match[2]) if match else ("", to)


def send_files(
    files: Mapping[str, PublicFile],
    to: str,
    kind: RepositoryKind,
    *,
    title: str,
    public: bool,
    progress: Progress,
) -> str:
    """Publish files, by their paths there, at `to`: hf:ORG/NAME, s3://BUCKET/PREFIX or a directory.

    Returns where they are. On the Hub it is one commit, called `title`, to a repository that is
    private unless `public`. Elsewhere SHA256SUMS, which must be among the files, is written last.
    Raises `LabelguardError` where something else is there, or the place cannot be written to.
    """
    scheme, name = split_destination(to)
    if public and scheme != "hf":
        raise LabelguardError(
            f"--public is for the Hub (hf:ORG/NAME); {to} has its own access rules"
        )
    if scheme == "hf":
        return _send_to_hub(files, name, kind, title, public, progress)
    if scheme == "s3":
        return _send_to_s3(files, to, progress)
    if scheme:
        raise LabelguardError(
            f"nothing is published to {scheme}: addresses; expected hf:ORG/NAME, "
            "s3://BUCKET/PREFIX or a directory"
        )
    return _write_directory(files, Path(to), progress)


def _write_directory(files: Mapping[str, PublicFile], output: Path, progress: Progress) -> str:
    check_output_directory(output, "published")
    if output.is_dir() and any(output.iterdir()):
        if hash_files(output) != {name: file.sha256 for name, file in files.items()}:
            raise LabelguardError(f"{output} holds something else; choose another directory")
        return str(output)
    try:
        with new_directory(output) as temporary:
            for number, (name, file) in enumerate(files.items()):
                progress("copying", number / len(files))
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                with (temporary / name).open("xb") as target:
                    file.copy_to(target)
    except OSError as error:
        raise LabelguardError(f"{output} cannot be written: {error.strerror}") from None
    return str(output)


def _send_to_s3(files: Mapping[str, PublicFile], to: str, progress: Progress) -> str:
    """Publish to S3, with the credentials, region and endpoint of AWS's own variables and files."""
    match = _BUCKET.fullmatch(to)
    if match is None:
        raise LabelguardError(
            "expected s3://BUCKET/PREFIX, of letters, digits and . _ = + -; credentials are those "
            "of AWS_ACCESS_KEY_ID, AWS_PROFILE or the machine"
        )
    from pyarrow.fs import FileSystem

    base = match["path"]
    try:
        filesystem, _ = FileSystem.from_uri(f"s3://{base}")
        if _is_published_at_s3(files, filesystem, base):
            return to
        for number, name in enumerate(sorted(files, key=lambda name: (name == SUMS, name))):
            progress("uploading to S3", number / len(files))
            try:
                with filesystem.open_output_stream(f"{base}/{name}") as target:
                    files[name].copy_to(target)
            except LabelguardError:
                filesystem.delete_file(f"{base}/{name}")
                raise
    except OSError as error:
        raise LabelguardError(f"{to}: {_take_first_line(error)}") from None
    return to


def _is_published_at_s3(
    files: Mapping[str, PublicFile], filesystem: S3FileSystem, base: str
) -> bool:
    """Return whether all files are there; raise `LabelguardError` if something else is."""
    from pyarrow.fs import FileSelector, FileType

    infos = filesystem.get_file_info(FileSelector(base, allow_not_found=True, recursive=True))
    sizes = {
        info.path.removeprefix(f"{base}/"): info.size
        for info in infos
        if info.type == FileType.File
    }
    if SUMS in sizes:
        with filesystem.open_input_stream(f"{base}/{SUMS}") as stream:
            same = hashlib.sha256(stream.read()).hexdigest() == files[SUMS].sha256
    else:
        same = sizes.keys() <= files.keys()
    if not same:
        raise LabelguardError(f"s3://{base} holds something else; choose another prefix")
    return SUMS in sizes and sizes == {
        name: file.path.stat().st_size for name, file in files.items()
    }


def _send_to_hub(
    files: Mapping[str, PublicFile],
    repository: str,
    kind: RepositoryKind,
    title: str,
    public: bool,
    progress: Progress,
) -> str:
    """Publish in one commit; what an earlier one published in the repository is replaced."""
    if not _REPOSITORY.fullmatch(repository):
        raise LabelguardError(f"expected hf:ORG/NAME, found {f'hf:{repository}'!a}")
    extras.require_extra("hub", "publishing to the Hugging Face Hub")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api, where = HfApi(), f"hf:{repository}"
    with _shorten_errors(where):
        progress("asking the Hub", None)
        api.create_repo(repository, repo_type=kind, private=not public, exist_ok=True)
        info = api.repo_info(repository, repo_type=kind)
        if bool(info.private) is public:
            raise LabelguardError(
                f"{where} is {'private' if public else 'public'} already: "
                + ("change that on the Hub first" if public else "take another one, or --public")
            )
        listed = api.list_repo_files(repository, repo_type=kind, revision=info.sha)
        names = set(listed) - _OF_HUB
        if names and (SUMS not in names or any(name.startswith(".") for name in names)):
            raise LabelguardError(f"{where} holds something else; choose another repository")
        progress("uploading to the Hub", None)
        additions = {
            name: CommitOperationAdd(name, _content_or_path(file)) for name, file in files.items()
        }
        api.preupload_lfs_files(repository, additions.values(), repo_type=kind)
        for name, addition in additions.items():
            files[name].check(addition.upload_info.sha256.hex())
        deletions = (CommitOperationDelete(name, is_folder=False) for name in names - files.keys())
        api.create_commit(
            repository,
            [*additions.values(), *deletions],
            commit_message=title,
            repo_type=kind,
            parent_commit=info.sha,  # nobody else's commit in between
        )
    return f"{api.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repository}"


def _content_or_path(file: PublicFile) -> bytes | str:
    """Return a small file's content, and the path of a large one."""
    with file.open() as opened:
        return str(file.path) if os.fstat(opened.fileno()).st_size > _SMALL else opened.read()


@contextmanager
def _shorten_errors(where: str) -> Iterator[None]:
    """Tell in one line what the Hub, or the way to it, refuses."""
    try:
        yield
    except LabelguardError:
        raise
    except Exception as error:
        raise LabelguardError(f"{where}: {_take_first_line(error)}") from error


def _take_first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
