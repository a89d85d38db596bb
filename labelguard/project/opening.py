"""A project that is open: its paths, keys and ledger; made by `init`, held by one job at a time.

A job first gives back, tidies away and lists what earlier ones left.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from labelguard.errors import KeyProblem, LedgerError, PolicyError, ProjectBusy, ProjectError
from labelguard.keys import keyring
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import Ceiling
from labelguard.ledger.records import ReleaseRecord
from labelguard.project.private_map import PrivateMap
from labelguard.project.project import (
    CONFIG,
    STATE,
    Project,
    find,
    register_project,
    retry_until_free,
)
from labelguard.storage.files import check_own_directory, write_atomically
from labelguard.text import suggest_misspelled_keywords

if TYPE_CHECKING:
    from labelguard.answers.store import AnswerStore

IGNORE = ".gitignore"

_CONFIG = """\
# What a person may edit (docs/configuration.md). No secrets here: a ledger URL with a
# password goes into the environment variable LABELGUARD_LEDGER_URL.
format = 1

[input]
# The source of labelers' ids: worker 7 of one tool is not worker 7 of another. Keep this
# value; add further sources with: labelguard source add NAME.
source = "files"

[input.columns]
# The names your files use, for example:
# labeler_id = "worker"

# For the record of processing (docs/privacy-officer.md):
# [organisation]
# controller = "who decides what the labels are for: a name, an address"
# contact = "whom labelers write to"
# purpose = "what the labels are used for"
# legal_basis = "what permits it"
# recipients = "who is given releases and models"
# transfers = "other countries that they go to, and what protects them there; or none"
# retention = "how long raw labels, releases and models are kept"
# measures = "what else protects labels"
"""


# A project, or its directory; None: the one named by LABELGUARD_PROJECT, or found from here.
Where: TypeAlias = Project | str | Path | None


@dataclass(frozen=True)
class OpenProject:
    """A project with its keys and its ledger."""

    project: Project
    keys: KeyRing
    ledger: Ledger

    @property
    def private_map(self) -> PrivateMap:
        """Return the PRIVATE maps of released labels."""
        return PrivateMap(self.project.private_maps, self.keys)

    @property
    def answers(self) -> AnswerStore:
        """The answers of annotation tools."""
        from labelguard.answers.store import AnswerStore

        where = self.project.state, self.project.ledger_url, self.project.connectors
        return AnswerStore(*where, self.keys, self.ledger)

    @property
    def map_digests(self) -> dict[str, str]:
        """Return the digests of the private maps that the ledger counts, by release."""
        return {record.id: record.map for record in self.ledger.releases.all() if record.map}

    @classmethod
    def open(cls, where: Where = None) -> Self:
        """Open a project to look at it.

        Raises `NoProject`, `ProjectError`, `KeyProblem` or `LedgerError` for one that cannot be
        opened.
        """
        home = locate_project(where)
        keys = KeyRing(home.keys)
        return cls(home, keys, Ledger(home.ledger_url, keys))

    @classmethod
    @contextlib.contextmanager
    def hold_for_job(cls, where: Where = None) -> Iterator[Self]:
        """Open a project and hold it, with its ledger, for one job.

        Raises `ProjectBusy` if another job holds either, on whichever machine: at once, unless this
        is done under `waiting`.
        """
        home = locate_project(where)
        opened, stack = retry_until_free(lambda: cls._lock(home))
        with stack:
            yield opened

    @classmethod
    def _lock(cls, home: Project) -> tuple[Self, contextlib.ExitStack]:
        """Lock the project; return it opened, and the stack that unlocks it."""
        with contextlib.ExitStack() as stack:
            locked = stack.enter_context(home.lock())
            opened = cls.open(locked)  # as the job before left it
            stack.enter_context(opened.ledger.hold_exclusively())
            opened.refuse_older_ledger()
            return opened, stack.pop_all()

    def refuse_older_ledger(self) -> None:
        """Raise `LedgerError` if the ledger lacks a release on disk: it is an older copy."""
        known = (record.id for record in self.ledger.releases.all())
        if strays := self.project.list_unknown_releases(known):
            raise LedgerError(
                f"release {strays[0]} is in {self.project.state}, but not in the ledger: it is an "
                "older copy and would forget what was spent; put the newest copy back"
            )

    def begin_epoch_between_releases(self) -> int:
        """Begin a new epoch in which no release is unfinished: no terms change over a release.

        Raises `PolicyError` for an unfinished release, `ProjectBusy` for one being computed.
        """
        unfinished = [record.id for record in self.ledger.releases.all() if record.is_unfinished]
        for release in unfinished:
            self.project.check_free(release)
        if unfinished:
            raise PolicyError(
                f"release {unfinished[0]} is unfinished; run its command again, or give it up "
                f"(labelguard release abandon {unfinished[0]}), first"
            )
        return self.ledger.begin_job()


def locate_project(where: Where = None) -> Project:
    """Return the project that `where` names (see `Where`)."""
    return where if isinstance(where, Project) else find(where)


@suggest_misspelled_keywords
def init(
    directory: str | Path = ".",
    *,
    max_epsilon: float = 10.0,
    max_delta: float = 1e-4,
    lasting: bool = True,
) -> Project:
    """Make a project in `directory`, by default here: configuration, keys, empty ledger.

    All policies of the project together will cost a labeler at most (`max_epsilon`, `max_delta`).
    One that is not `lasting` is not found from its directory later; who made it removes it. Back up
    `keys` apart from the data, and never share them.

    Raises `ProjectError` for a directory that holds a project, or cannot be written, `KeyProblem`
    where a key is there already, `PolicyError` for what is no budget.

    Example:
        >>> lg.init("survey", max_epsilon=10, max_delta=1e-4)
        Project('survey')
    """
    directory = Path(directory)
    ceiling = Ceiling(float(max_epsilon), float(max_delta))
    state = directory / STATE
    if (state / CONFIG).exists():
        raise ProjectError(f"{state} is a project already")
    if variable := keyring.find_key_variable():
        # A key that exists is another project's, or this one's, whose ledger would begin anew.
        raise KeyProblem(
            f"init makes a key of its own: unset {variable}, and put the key into your secret "
            "store afterwards (SECURITY.md)"
        )
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_own_directory(state, ProjectError)
        for name in ("releases", "released", "quarantine"):
            (state / name).mkdir(exist_ok=True, mode=0o700)
        project = Project(state)
        key = project.keys / "project.key"
        if key.exists() and state not in key.parents:
            raise KeyProblem(
                f"{key} exists: it is another project's; two projects with one key would draw the "
                "same coins; set LABELGUARD_KEYS to a directory of its own"
            )
        if not key.exists():
            KeyRing.create(project.keys)
        keys = KeyRing(project.keys)
        Ledger.create(project.ledger_url, keys, ceiling)
        if lasting:
            git_ignore_and_register(state, state)
        # Written last: a directory without it is not a project, so a crash above can be repeated.
        write_atomically(state / CONFIG, _CONFIG.encode())
    except OSError as error:
        raise ProjectError(f"cannot make a project in {directory}: {error.strerror}") from None
    return project


def git_ignore_and_register(state: Path, place: Path) -> None:
    """Keep a new project, which will be at `place`, out of git, and in this user's list."""
    write_atomically(state / IGNORE, b"*\n", mode=0o600)
    register_project(state, place)


@dataclass(frozen=True)
class Abandoned:
    """A release that was given up."""

    # its id
    id: str
    # what it charged, which stays charged
    charged: int


def abandon(release_id: str, project: Where = None) -> Abandoned:
    """Give up an unfinished release: it stays charged, and can never be resumed.

    Raises `LedgerError` if it is not one that was begun and not committed, `ProjectBusy` if it is
    being computed. Its id may be shortened.
    """
    with OpenProject.hold_for_job(project) as opened:
        ledger = opened.ledger
        begun = [record for record in ledger.releases.all() if record.is_unfinished]
        matches = [record for record in begun if record.id.startswith(release_id)]
        if len(matches) != 1:
            raise LedgerError(
                f"{release_id} names {len(matches)} unfinished releases; see: "
                "labelguard release list"
            )
        opened.project.check_free(matches[0].id)
        ledger.abandon(matches[0].id, ledger.begin_job())
        remove_leftovers(opened, ledger.releases.all())
        return Abandoned(matches[0].id, matches[0].charged)


def clean_up_after_crashes(opened: OpenProject, resumed: str | None, epoch: int) -> list[str]:
    """Give back what crashed jobs reserved and never used; notes on this and on what they began.

    `resumed` is the release that goes on, if any. Raises `ProjectError` if a private map is not the
    one that was drawn.
    """
    ledger = opened.ledger
    notes = [
        f"release {release_id} never drew a coin; its charge was given back"
        for release_id in ledger.refund_reserved(epoch, resumed=resumed)
    ]
    releases = ledger.releases.all()
    remove_leftovers(opened, releases)
    opened.private_map.finish_rewriting(opened.map_digests)
    return notes + [
        _describe_unfinished(opened, record)
        for record in releases
        if record.is_unfinished and record.id != resumed
    ]


def _describe_unfinished(opened: OpenProject, record: ReleaseRecord) -> str:
    try:
        opened.project.check_free(record.id)
    except ProjectBusy as busy:
        return str(busy)
    return (
        f"release {record.id} is unfinished and stays charged; run its command again to finish it, "
        f"or give it up: labelguard release abandon {record.id}"
    )


def remove_leftovers(opened: OpenProject, releases: Iterable[ReleaseRecord]) -> None:
    """Remove what counts for nothing: maps that the ledger does not know to be drawn (nothing of
    them was visible), stages of ended releases, and the files of abandoned ones.

    A crash may have come before whoever should have done it. Who still works on a release that was
    given up keeps its stages until they notice.
    """
    project, private_map = opened.project, opened.private_map
    private_map.discard_unfinished()
    for record in releases:
        if not record.map:
            private_map.discard(record.id)
        if not record.is_unfinished and any(project.stages.glob(f"{record.id}*")):
            with contextlib.suppress(ProjectBusy), project.claim(record.id):
                project.clear_stages(record.id)
        if record.state == "abandoned":
            shutil.rmtree(project.releases / record.id, ignore_errors=True)
