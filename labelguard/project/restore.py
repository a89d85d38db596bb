"""`project restore`: a project from its backup, which never forgets what was spent.

What was charged between the backup and the loss is unknown, so it counts at its largest. A policy's
full price covers every event that it allows, for every labeler, also those whom the backup does not
know, in whatever order: the policy that was in force is closed, and what follows is paid on top.
The one exception is the word of whoever restores it that nothing was charged since
(`nothing_since`). No anchor proves that; one that was kept can refute it.

Policies that were put into force after the backup are not in it. Whoever restores pays each again:
makes a policy with its ε and δ, puts it into force and closes it.

Labels that the backup knows keep their values. Labels that were drawn after it are not known here,
and are drawn afresh if they come again, as events of their own under policies of their own: no
randomness is kept anywhere, so the two answers are independent. Unfinished releases are abandoned,
because they may have been finished after the backup. Keys are never made.

Nothing of the backup is unpacked or opened before its manifest is known to be the project's own.
All is prepared beside the place, then put into it: the ledger's tables (if they live elsewhere),
the keys, and last, by one rename, the project. After a crash, run it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import sqlalchemy as sa

from labelguard.errors import KeyProblem, LabelguardError, LedgerError, PolicyError, ProjectError
from labelguard.keys import keyring
from labelguard.keys.keyring import KEY_FILE, KeyRing
from labelguard.ledger import charges, database, journal, policies, schema
from labelguard.ledger.journal import Anchor
from labelguard.ledger.ledger import Ledger
from labelguard.project import attempts, backup
from labelguard.project.opening import git_ignore_and_register
from labelguard.project.project import (
    STATE,
    Project,
    file_lock,
    read_ledger_variable,
)
from labelguard.storage.files import fresh_directory, publish_directory, write_atomically

_DONE = "restored.json"


@dataclass(frozen=True)
class Restored:
    """A project that came back from its backup."""

    # its directory
    project: str
    # whether it was declared that nothing followed the backup, and nothing known denies it
    complete: bool
    # policies that were in force, closed at their full prices
    closed: list[str]
    # releases that were begun, stay charged, and cannot be finished
    abandoned: list[str]
    # committed releases
    releases: int
    # the file
    backup: str
    # when it was made, UTC
    created_at: str
    # its journal's newest entry
    backup_anchor: str
    # the newest entry now: the line to keep elsewhere
    anchor: str
    # where the keys are from
    keys: str


@dataclass(frozen=True)
class _Ready:
    """The content of a directory beside the project's, so that a crashed restore goes on.

    `request` tells it from others.
    """

    request: str
    result: Restored

    @classmethod
    def read(cls, partial: Path) -> Self | None:
        """Return what a crashed restore had made ready, if anything."""
        if not (partial / _DONE).exists():
            return None
        data = json.loads((partial / _DONE).read_text(encoding="utf-8"))
        return cls(data["request"], Restored(**data["result"]))


def restore(
    path: str | Path,
    directory: str | Path,
    *,
    anchor: str | None = None,
    nothing_since: bool = False,
    keys: Path | None = None,
) -> Restored:
    """Put the project of a backup into `directory`; return what became of it.

    `anchor` is the newest line that was kept of its ledger; `nothing_since` declares that nothing
    was charged after the backup. The keys are those in the directory LABELGUARD_KEYS, or what else
    the environment names, else a copy of those in `keys`. Raises `ProjectError` if there is a
    project already or the backup is not whole, `KeyProblem` for missing keys, `LedgerError` if the
    ledger does not hold, has another history than the anchor, or its database holds one already,
    `PolicyError` if something is known to have followed where nothing is declared to have.
    """
    source, home = Path(path), Path(directory)
    newest = Anchor.parse(anchor) if anchor else None
    state, partial = home / STATE, home / f"{STATE}.partial"
    if home.name == STATE:
        raise ProjectError(
            f"a backup is restored into the directory that will hold {STATE}: name {home.parent}"
        )
    if state.exists():
        raise ProjectError(f"{state} exists; restore into a directory without a project")
    try:
        home.mkdir(parents=True, exist_ok=True)
        busy = f"another restore works in {home}; run this again when it is done"
        with file_lock(home, os.O_RDONLY, busy):
            # A crashed restore goes on only with the same backup and words.
            with backup.open_archive(source) as file:
                words = file.manifest + file.mac + repr((newest, nothing_since)).encode()
            request = hashlib.sha256(words).hexdigest()
            ready = _Ready.read(partial)
            if ready is None or ready.request != request:
                try:
                    fresh_directory(partial, mode=0o700)
                    ready = _prepare_restored_project(
                        source, partial, newest, nothing_since, keys, request
                    )
                    # Last of all: it says that all is there.
                    done = json.dumps(asdict(ready)).encode()
                    write_atomically(partial / _DONE, done, mode=0o600)
                except (LabelguardError, OSError):
                    shutil.rmtree(partial, ignore_errors=True)
                    raise
            try:
                _move_into_place(partial, state, Anchor.parse(ready.result.anchor))
            except LabelguardError as error:
                raise type(error)(
                    f"{error}; then run the same command again, or remove {partial}"
                ) from None
            return replace(ready.result, project=str(state))
    except OSError as error:
        why = error.strerror or str(error)
        left = f", or remove {partial}" if partial.exists() else ""
        raise ProjectError(
            f"cannot restore into {home}: {why}; then run this again{left}"
        ) from None


def _prepare_restored_project(
    source: Path,
    partial: Path,
    anchor: Anchor | None,
    nothing_since: bool,
    keys: Path | None,
    request: str,
) -> _Ready:
    """Make all of the project in `partial`; return what is left to do once it is in place."""
    for name in (*backup.DIRECTORIES[:2], "quarantine"):
        (partial / name).mkdir(mode=0o700)
    with backup.open_archive(source) as file:
        ring, origin = _obtain_keys(partial, keys)
        if not ring.verify("backup", file.manifest, file.mac):
            raise ProjectError(
                f"{source} was altered after it was made, or the keys are another project's; use "
                "another backup, or its keys"
            )
        manifest = file.extract(partial)
    git_ignore_and_register(partial, partial.with_name(STATE))
    ledger = Ledger(f"sqlite:///{partial / backup.LEDGER}", ring)
    if broken := ledger.find_fault():
        raise LedgerError(f"the ledger in {source} does not hold: {broken}")
    head = Anchor.parse(manifest["anchor"])
    with ledger.snapshot() as connection:
        _check_history(connection, head, anchor, nothing_since)
    for record in ledger.releases.all():
        if record.map:  # one without new labels has no file, and a backup has files alone
            (partial / "released" / record.id).mkdir(mode=0o700, exist_ok=True)
    closed, abandoned = _close_policy_and_give_up_releases(ledger, nothing_since)
    for release in abandoned:
        shutil.rmtree(partial / "releases" / release, ignore_errors=True)
    committed = ledger.releases.list_committed()
    if committed:
        attempts.record_restored(Project(partial), committed[-1].created_at)
    result = Restored(
        project="",  # where it is put, in the end
        complete=nothing_since,
        closed=closed,
        abandoned=abandoned,
        releases=len(committed),
        backup=str(source),
        created_at=manifest["created_at"],
        backup_anchor=str(head),
        anchor=str(Anchor(*ledger.read_head())),
        keys=origin,
    )
    return _Ready(request, result)


def _obtain_keys(partial: Path, keys: Path | None) -> tuple[KeyRing, str]:
    """Return the project's keys, and where they are from."""
    own, handed_over = Project(partial).keys, keyring.find_key_variable()
    if handed_over or (own / KEY_FILE).exists():
        if keys:
            where = handed_over or f"{own} (LABELGUARD_KEYS)"
            raise KeyProblem(f"there are keys in {where} and in {keys}; choose one")
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        return KeyRing(own), f"in place at {own}"
    if keys is None:
        raise KeyProblem(
            "no keys to restore with: name a copy of the keys directory with --keys, or "
            "set LABELGUARD_KEYS to it; they are never regenerated"
        )
    return KeyRing(keys).copy_to(partial / "keys"), f"copied from {keys}"


def _check_history(
    connection: sa.Connection, head: Anchor, newest: Anchor | None, nothing_since: bool
) -> None:
    """Raise `LedgerError` if the backup's journal, which ends at `head`, has another history than
    the newest anchor that was kept, `PolicyError` if that refutes that nothing followed it.
    """
    for anchor in (head, newest or head):
        there = journal.read_digest(connection, anchor.number)
        if anchor.number <= head.number and there != anchor.digest:
            raise LedgerError(
                f"the backup has another history than {anchor}: journal entry {anchor.number} "
                "differs; it is a backup of another project, or one of the two was rewritten"
            )
    if nothing_since and newest and newest.number > head.number:
        raise PolicyError(
            f"something followed the backup: journal entry {newest.number} is known, and its last "
            f"is {head.number}; leave --nothing-since out"
        )


def _close_policy_and_give_up_releases(ledger: Ledger, whole: bool) -> tuple[list[str], list[str]]:
    """Close the policy under which more may have been charged, and give up what cannot be resumed.

    Returns the policies closed, and the releases given up.
    """
    epoch = ledger.begin_job()
    ends = charges.UNFINISHED if whole else ("reserved", *charges.UNFINISHED)
    given_up = [(r.id, r.state) for r in ledger.releases.all() if r.state in ends]
    with ledger.transaction(epoch) as connection:
        for release, before in given_up:
            charges.change_state(connection, release, [before], "abandoned")
        active = None if whole else policies.find_active(connection)
        if active:
            policies.close_policy(connection, active)
        journal.append_entry(connection, "restored", {"complete": whole})
    return [active.name] if active else [], [release for release, _ in given_up]


def _move_into_place(partial: Path, state: Path, head: Anchor) -> None:
    """Put what is ready where it belongs, the project last; may be repeated."""
    own, copied = Project(state).keys, partial / "keys"
    if url := read_ledger_variable():
        copy_ledger_to_database(url, partial / backup.LEDGER, head)
        (partial / backup.LEDGER).unlink(missing_ok=True)
    if own.parent != state:  # LABELGUARD_KEYS
        if (copied / KEY_FILE).exists():  # else a crash took part of what was installed
            KeyRing(copied).copy_to(own)
        shutil.rmtree(copied, ignore_errors=True)
    publish_directory(partial, state)


def copy_ledger_to_database(url: str, path: Path, head: Anchor) -> None:
    """The restored ledger into the database where it is to live, unless a crashed restore did."""
    target, source = database.connect(url), database.connect(f"sqlite:///{path}")
    try:
        with database.begin_writing(target) as connection:
            if sa.inspect(connection).has_table(schema.meta.name):
                if Anchor(*journal.read_head(connection)) == head:
                    return
                raise LedgerError(
                    f"{database.format_address(target.url)} holds a ledger already: name an empty "
                    "database in LABELGUARD_LEDGER_URL"
                )
            with source.connect() as rows:
                backup.copy_tables(rows, connection)
    finally:
        target.dispose()
        source.dispose()
