"""`project restore`: a project from its backup, which never forgets what was spent.

What was charged between the backup and the loss is unknown, so it counts at its largest. A policy's
full price covers every event that it allows, for every labeler, also those whom the backup does not
know, in whatever order: the policy that was in force is closed at that price, not at a closing
point, and what follows is paid on top. Policies that were put into force after the backup are not
in it; their prices must be given (`lost`), or it must be said that there were none. An anchor shows
how far a ledger came, never that it went no further: so the project is whole only on the word of
whoever restores it that nothing followed (`nothing`), given with the backup's own anchor, and only
if the witness beside the keys knows of nothing newer.

Labels that the backup knows keep their values. Labels that were drawn after it are not known here,
and are drawn afresh if they come again, as events of their own under policies of their own: no
randomness is kept anywhere, so the two answers are independent. Unfinished releases are abandoned,
because they may have been finished after the backup. Keys are never made.

Nothing of the backup is unpacked or opened before its manifest is known to be the project's own.
All is prepared beside the place, then put into it: the ledger's tables (if they live elsewhere),
the keys and their witness, and last, by one rename, the project. After a crash, run it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import sqlalchemy as sa

from labelguard.errors import (
    KeyProblem,
    LabelguardError,
    LedgerError,
    PolicyError,
    ProjectError,
)
from labelguard.keys import key_source, sealing
from labelguard.keys.keyring import KEY_FILES, KeyRing
from labelguard.keys.pseudonyms import Pseudonyms
from labelguard.ledger import charges, database, journal, policies, schema, witness
from labelguard.ledger.journal import Anchor
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.meta import fingerprint
from labelguard.ledger.migrations import migrate
from labelguard.ledger.policies import PolicyRecord
from labelguard.ledger.witness import Witness
from labelguard.policy.events import RANDOMIZED_LABELS
from labelguard.policy.policy import Allowance, Policy, parse_budget
from labelguard.project import archive, backup, known
from labelguard.project.opening import OpenProject, seclude
from labelguard.project.project import STATE, Project, find, held
from labelguard.project.rotation import rename
from labelguard.storage.files import fresh_directory, publish_directory, write_atomically

_DONE = "restored.json"


@dataclass(frozen=True)
class Since:
    """What is known of the time between a backup and the loss of the project.

    `anchor`: the newest line that was kept of the ledger. `lost`: (ε, δ) of every policy put into
    force since, for the unit of the backup's policies; () says that there was none, None nothing.
    `nothing`: word that nothing at all was charged since.
    """

    anchor: Anchor | None = None
    lost: tuple[tuple[float, float], ...] | None = None
    nothing: bool = False


@dataclass(frozen=True)
class Restored:
    """A project that came back from its backup."""

    project: str
    """its directory"""
    complete: bool
    """whether it was declared that nothing followed the backup, and nothing known denies it"""
    closed: list[str]
    """policies that were in force, closed at their full prices"""
    lost_policies: list[str]
    """what policies that followed the backup are called now"""
    abandoned: list[str]
    """releases that were begun, stay charged, and cannot be finished"""
    releases: int
    """committed releases"""
    backup: str
    """the file"""
    created_at: str
    """when it was made, UTC"""
    backup_anchor: str
    """its journal's newest entry"""
    anchor: str
    """the newest entry now: the line to keep elsewhere"""
    keys: str
    """where the keys are from"""


@dataclass(frozen=True)
class _Ready:
    """What is ready in a directory beside the project's, so that a crashed restore goes on.

    `request` tells it from others; `seen` is what the witness beside the keys knew.
    """

    request: str
    seen: list[tuple[int, str]]
    result: Restored

    def write(self, partial: Path) -> None:
        """Say, last, that all is there."""
        write_atomically(partial / _DONE, json.dumps(asdict(self)).encode(), mode=0o600)

    @classmethod
    def read(cls, partial: Path) -> Self | None:
        """What a crashed restore had made ready, if anything."""
        if not (partial / _DONE).exists():
            return None
        found = json.loads((partial / _DONE).read_text(encoding="utf-8"))
        seen = [(number, digest) for number, digest in found["seen"]]
        return cls(found["request"], seen, Restored(**found["result"]))


def parse_since(
    anchor: str | None, lost: Sequence[str], no_later_policy: bool, nothing_since: bool = False
) -> Since:
    """From an anchor's line, and one of: `EPSILON,DELTA` for each lost policy; word that none was
    lost; word that nothing whatever was charged.

    Raises `PolicyError` for anything else, `LedgerError` for what is no anchor.
    """
    if bool(lost) + no_later_policy + nothing_since > 1:
        raise PolicyError(
            "either policies were put into force after the backup, or none, or nothing followed it"
        )
    prices = tuple(parse_budget("--lost-policy", text) for text in lost)
    known = prices if lost or no_later_policy else None
    return Since(Anchor.parse(anchor) if anchor else None, known, nothing_since)


def restore(
    path: str | Path,
    directory: str | Path,
    *,
    since: Since = Since(),
    keys: Path | None = None,
    passphrase: Callable[[], str] | None = None,
) -> Restored:
    """Put the project of a backup into `directory`; what became of it.

    The keys are those in the directory LABELGUARD_KEYS, or what else the environment names, else a
    copy of those in `keys`, else those in the backup, for which `passphrase` is asked. Raises
    `ProjectError` if there is a project already or the backup is not whole, `KeyProblem` for
    missing keys, `LedgerError` if the ledger does not hold, has another history than
    `since.anchor`, or its database holds one already, `PolicyError` if nothing is said of policies
    that may have followed.
    """
    source, home = Path(path), Path(directory)
    state, partial = home / STATE, home / f"{STATE}.partial"
    if state.exists():
        raise ProjectError(f"{state} exists; restore into a directory without a project")
    try:
        home.mkdir(parents=True, exist_ok=True)
        busy = f"another restore works in {home}; run this again when it is done"
        with held(home, os.O_RDONLY, busy):
            request = _request(source, since)
            ready = _Ready.read(partial)
            if ready is None or ready.request != request or _outdated(ready, partial, state):
                fresh_directory(partial, mode=0o700)
                ready = _prepare(source, partial, since, keys, passphrase, request)
                ready.write(partial)
            _publish(partial, state)
            return replace(ready.result, project=str(state))
    except OSError as error:
        why = error.strerror or str(error)
        raise ProjectError(f"cannot restore into {home}: {why}; then run this again") from None


def _request(source: Path, since: Since) -> str:
    """Tells one restore from another: a crashed one goes on only with the same backup and words."""
    with archive.reading(source) as file:
        data = file.manifest + file.mac + repr(since).encode()
    return hashlib.sha256(data).hexdigest()


def _outdated(ready: _Ready, partial: Path, state: Path) -> bool:
    """Whether the project did anything after a restore that crashed had looked at its witness.

    What that restore found complete need not be so any more.
    """
    keys = Project(state).keys
    if keys.parent == state:  # copied: nobody else works with them
        return False
    own = Witness([partial / witness.FILE]).seen()
    return Witness([keys / witness.FILE]).seen() not in (ready.seen, own)


def _prepare(
    source: Path,
    partial: Path,
    since: Since,
    keys: Path | None,
    passphrase: Callable[[], str] | None,
    request: str,
) -> _Ready:
    """All of the project in `partial`, as it will be."""
    for name in (*archive.DIRECTORIES[:2], "quarantine"):
        (partial / name).mkdir(mode=0o700)
    with archive.reading(source) as file:
        ring, origin, seen = _keys(partial, file.sealed, keys, passphrase)
        if not ring.verify("backup", file.manifest, file.mac):
            raise ProjectError(
                f"{source} was altered after it was made, or the keys are another project's; use "
                "another backup, or its keys"
            )
        manifest = file.extract(partial)
    seclude(partial, partial.with_name(STATE))
    migrate(_url(partial), ring)
    ledger = _open(source, partial, ring)
    head = Anchor.parse(manifest["anchor"])
    with ledger.snapshot() as connection:
        whole = _whole(connection, head, since, seen)
    ledger = _named_as_now(ledger, partial, ring)
    closed, lost, abandoned = _settle(ledger, whole, since.lost or ())
    for release in abandoned:
        shutil.rmtree(partial / "releases" / release, ignore_errors=True)
    number, digest = ledger.head()
    Witness([partial / witness.FILE]).replace(number, digest)
    result = Restored(
        project="",  # where it is put, in the end
        complete=whole,
        closed=closed,
        lost_policies=lost,
        abandoned=abandoned,
        releases=sum(record.state == "committed" for record in ledger.releases()),
        backup=str(source),
        created_at=manifest["created_at"],
        backup_anchor=str(head),
        anchor=str(Anchor(number, digest)),
        keys=origin,
    )
    return _Ready(request, seen, result)


def _open(source: Path, partial: Path, ring: KeyRing) -> Ledger:
    """The ledger of a backup, if it holds."""
    ledger = _ledger(partial, ring)
    broken = ledger.fault()
    if broken:
        raise LedgerError(f"the ledger in {source} does not hold: {broken}")
    return ledger


def _ledger(partial: Path, ring: KeyRing) -> Ledger:
    def names(found: str) -> Pseudonyms:
        return ring.pseudonyms(found) if found else Pseudonyms()

    return Ledger(_url(partial), ring, names=names)


def _url(partial: Path) -> str:
    return f"sqlite:///{partial / archive.LEDGER}"


def _named_as_now(ledger: Ledger, partial: Path, ring: KeyRing) -> Ledger:
    """The ledger under the names of the keys, where these were first changed after the backup."""
    present = ring.pseudonyms()
    with ledger.snapshot() as connection:
        found = fingerprint(connection)
    if found == present.fingerprint:
        return ledger
    with ledger.transaction(ledger.begin_job()) as connection:
        rename(connection, Pseudonyms(), present)
    return _ledger(partial, ring)


def _keys(
    partial: Path,
    sealed: bytes | None,
    keys: Path | None,
    passphrase: Callable[[], str] | None,
) -> tuple[KeyRing, str, list[tuple[int, str]]]:
    """The project's keys, where they are from, and what the witness beside them has seen."""
    own, handed_over = Project(partial).keys, key_source.named()
    if handed_over or (own / KEY_FILES[0]).exists():
        if keys:
            where = handed_over or f"{own} (LABELGUARD_KEYS)"
            raise KeyProblem(f"there are keys in {where} and in {keys}; choose one")
        if own.parent != partial:
            _refuse_taking(own)
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        return KeyRing(own), f"in place at {own}", Witness([own / witness.FILE]).seen()
    if keys:
        files = KeyRing(keys).secrets()
        origin, seen = f"copied from {keys}", Witness([keys / witness.FILE]).seen()
    elif sealed and passphrase:
        files = sealing.unseal(sealed, passphrase())
        origin, seen = "from the backup", []
    else:
        raise KeyProblem(
            "no keys to restore with: name a copy of the keys directory with --keys, or "
            "set LABELGUARD_KEYS to it; they are never regenerated"
        )
    return KeyRing.install(partial / "keys", files), origin, seen


def _refuse_taking(keys: Path) -> None:
    """Refuse keys in place whose project lives: their witness would know the restored one only."""
    made = known.places()
    with contextlib.suppress(LabelguardError):
        made.append(find().state)
    for state in made:
        if _lives(state):
            raise ProjectError(
                f"the project at {state} lives, and would be refused as an older copy if another "
                f"worked with the keys in {keys}; to try a backup, unset LABELGUARD_KEYS and give "
                "a copy of the keys: labelguard project restore BACKUP DIRECTORY --keys COPY; to "
                "replace the project, move it away first"
            )


def _lives(state: Path) -> bool:
    """Whether there is a project whose ledger opens with the keys in place, and is the newest."""
    try:
        OpenProject.open(state)
    except LabelguardError:
        return False
    return True


def _whole(
    connection: sa.Connection, head: Anchor, since: Since, seen: Sequence[tuple[int, str]]
) -> bool:
    """Whether nothing followed the backup, on word that anchor and witness do not deny."""
    known = [head, *([since.anchor] if since.anchor else []), *(Anchor(*entry) for entry in seen)]
    for anchor in known:
        there = journal.digest_of(connection, anchor.number)
        if anchor.number <= head.number and there != anchor.digest:
            raise LedgerError(
                f"the backup has another history than {anchor}: journal entry {anchor.number} "
                "differs; it is a backup of another project, or one of the two was rewritten"
            )
    newest = max(known, key=lambda anchor: anchor.number)
    if since.nothing and newest.number > head.number:
        raise PolicyError(
            f"something followed the backup: journal entry {newest.number} is known, and its last "
            f"is {head.number}; say which policies did: --lost-policy EPSILON,DELTA for each, or "
            "--no-later-policy"
        )
    if since.nothing and since.anchor != head:
        raise PolicyError("to declare --nothing-since, give the anchor of the backup as well")
    if not since.nothing and since.lost is None:
        raise PolicyError(
            "no anchor shows that nothing followed this backup; say what was put into force after "
            "it: --lost-policy EPSILON,DELTA for each policy, or --no-later-policy; or, where you "
            "know that nothing was charged since, --nothing-since with the backup's own anchor"
        )
    return since.nothing


def _settle(
    ledger: Ledger, whole: bool, lost: Sequence[tuple[float, float]]
) -> tuple[list[str], list[str], list[str]]:
    """Close what may have been charged, and give up what cannot be resumed.

    The policies closed, the names of those lost, and the releases given up.
    """
    epoch = ledger.begin_job()
    known = ledger.policies()
    ends = charges.UNFINISHED if whole else ("reserved", *charges.UNFINISHED)
    given_up = [(r.id, r.state) for r in ledger.releases() if r.state in ends]
    closed = [record.name for record in known if record.state == "active" and not whole]
    with ledger.transaction(epoch) as connection:
        for release, before in given_up:
            charges.set_state(connection, release, before, {"state": "abandoned"})
            journal.append(connection, "abandoned", {"release": release})
        active = policies.in_force(connection)
        if active and not whole:
            policies.close(connection, active, None)
        names = [_add_lost(connection, known, *price).name for price in lost]
        journal.append(connection, "restored", {"complete": whole})
    return closed, names, [release for release, _ in given_up]


def _add_lost(
    connection: sa.Connection, known: Sequence[PolicyRecord], epsilon: float, delta: float
) -> PolicyRecord:
    """A policy that nobody remembers but for its price: paid in full, and closed."""
    kin = [record.policy for record in known if record.state != "draft"]
    like = kin[-1] if kin else Policy(epsilon, delta)
    ties = RANDOMIZED_LABELS.default_ties if like.ties == "zero" else like.ties
    taken = {record.name for record in policies.records(connection)}
    name = next(n for i in range(1, len(taken) + 2) if (n := f"lost-{i}") not in taken)
    # It promised about the same neighbours as the policies that are known, or none could follow it.
    # How many labels of a content it paid for is not known either; any number has its price.
    allowed = RANDOMIZED_LABELS.first(None, like.unit)
    lost = replace(
        like,
        epsilon=epsilon,
        delta=delta,
        allowances=(Allowance(RANDOMIZED_LABELS.name, allowed),),
        ties=ties,
        closing_points=1,
    )
    return policies.add(connection, name, lost, "closed")


def _publish(partial: Path, state: Path) -> None:
    """Put what is ready where it belongs, the project last; may be repeated."""
    [head] = Witness([partial / witness.FILE]).seen()
    own, copied = Project(state).keys, partial / "keys"
    url = os.environ.get("LABELGUARD_LEDGER_URL")
    if url:
        _fill(url, partial / archive.LEDGER, head)
        (partial / archive.LEDGER).unlink(missing_ok=True)
    if own.parent != state:  # LABELGUARD_KEYS
        if (copied / KEY_FILES[0]).exists():  # else a crash took part of what was installed
            KeyRing.install(own, KeyRing(copied).secrets())
        shutil.rmtree(copied, ignore_errors=True)
        copied = own
    Witness([copied / witness.FILE]).replace(*head)
    publish_directory(partial, state)


def _fill(url: str, path: Path, head: tuple[int, str]) -> None:
    """The restored ledger into the database where it is to live, unless a crashed restore did."""
    target, source = database.connect(url), database.connect(f"sqlite:///{path}")
    try:
        with database.writing(target) as connection:
            if sa.inspect(connection).has_table(schema.meta.name):
                if journal.head(connection) == head:
                    return
                raise LedgerError(
                    f"{database.address(target.url)} holds a ledger already; a restored one needs "
                    "a database of its own"
                )
            with source.connect() as rows:
                backup.copy_tables(rows, connection)
    finally:
        target.dispose()
        source.dispose()
