"""A labeler leaves: retired (no more labels, none remembered), or erased (nothing raw is left).

The steps are ordered so that a crash leaves nothing half done that matters: first the tombstone,
after which no release draws for this labeler; then raw rows; last their rows in the private maps of
releases. Each step can be done again, so the same command completes what a crash left. What they
spent stays in the ledger.

Raw labels lie in several stores of a project. No step reads a label; rows are recognised by their
labeler's id alone.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass, field, replace

from labelguard.budget import pricing
from labelguard.budget.events import EVENTS
from labelguard.errors import LedgerError
from labelguard.inputs import quarantine
from labelguard.inputs.quarantine import DepartedLabelers, RawRows
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.people import Departure, Leaving
from labelguard.ledger.records import ReleaseRecord
from labelguard.project import linking
from labelguard.project.opening import OpenProject, Where, remove_leftovers
from labelguard.project.project import Project
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks


@dataclass(frozen=True)
class ReleaseUse:
    """The use of a labeler by one release, from the ledger alone."""

    # the release
    id: str
    # when it was begun, UTC
    created_at: str
    # computing, drawn, committed or abandoned
    state: str
    # rr, props or statistic
    mechanism: str
    # the kind of event that was charged: rr or statistic
    event: str
    # how much was charged: labels, or 1 for a statistic
    used: int


@dataclass(frozen=True)
class RemovalReport:
    """A labeler who left, or would leave, and what that means."""

    # their pseudonym
    labeler: str
    # retired or erased
    kind: Leaving
    # what they were before; null if neither
    before: Leaving | None
    # whether anything of theirs was found
    known: bool
    # whether charges are those of linked ids as well
    shared: bool
    # pseudonyms of linked ids (`people link`) that have not left: each leaves by itself
    linked: list[str]
    # rows of theirs in private maps
    rows_remembered: int
    # unfinished releases that cannot be finished without their labels, and stay charged
    given_up: list[str]
    # what earlier releases took of them
    releases: list[ReleaseUse]
    # how often labels of theirs were randomized together
    randomized_blocks: int
    # statistics that they were part of
    statistic_releases: int
    # what all of that may have told of them, at most: the full price of every policy so far, but
    # not of one that was put into force after they left and never charged them
    epsilon: float
    # and with which δ
    delta: float
    # raw rows of theirs: in quarantine, ingested, waiting in the inbox
    rows_set_aside: int = 0
    # of these, answers that were ingested, or wait in the inbox
    stored_answers: int = 0
    # files and dead letters that cannot be read, and go whole if the labeler is erased
    unreadable_files: list[str] = field(default_factory=list)
    # what leaving does not undo
    remains: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Leaver:
    """The labeler who leaves: their key, and that of the unit they are charged as, both (1, 2)."""

    opened: OpenProject
    key: Blocks
    unit: Blocks

    @property
    def project(self) -> Project:
        return self.opened.project

    @property
    def ledger(self) -> Ledger:
        return self.opened.ledger

    @property
    def row_matcher(self) -> DepartedLabelers:
        """Return how their rows are recognised."""
        return DepartedLabelers(self.opened.keys, self.project.namespace, self.key)

    @property
    def row_keys(self) -> set[bytes]:
        """Return the keys of their rows in all private maps."""
        maps, known = self.opened.private_map, self.opened.map_digests
        return {key for release in known for key in maps.find_row_keys(release, self.key)}

    @property
    def raw_rows(self) -> RawRows:
        """Return what is stored of them: rows in quarantine, and answers."""
        quarantined = quarantine.count_departed_rows(self.project.quarantine, self.row_matcher)
        return quarantined + self.opened.answers.remove_labelers(
            self.row_matcher, self.row_keys, None
        )

    def purge_raw(self, epoch: int) -> RawRows:
        """Remove it, from disk too; return what there was. May be called again after a crash.

        A job's scratch space goes with the job.
        """
        # It names answers without labelers, and the next release writes it anew.
        self.project.outside.unlink(missing_ok=True)
        quarantined = quarantine.remove_departed_rows(self.project.quarantine, self.row_matcher)
        return quarantined + self.opened.answers.remove_labelers(
            self.row_matcher, self.row_keys, epoch
        )

    @property
    def pseudonym(self) -> str:
        return blocks.to_hex(self.key[0])

    @property
    def charges(self) -> dict[int, int]:
        """Return how many uses each release, by its number, charged to their unit."""
        return self.ledger.releases.count_uses_by_release(self.unit)


def preview_removal(
    labeler_id: str, kind: Leaving, project: Where = None, *, never_seen: bool = False
) -> RemovalReport:
    """Return what `remove_labeler` would do and what would remain; change nothing."""
    leaver = _find_leaver(labeler_id, OpenProject.open(project), never_seen)
    return _add_rows_and_remains(_build_removal_report(leaver, kind), leaver, leaver.raw_rows)


def remove_labeler(
    labeler_id: str, kind: Leaving, project: Where = None, *, never_seen: bool = False
) -> RemovalReport:
    """Retire or erase a labeler, by `ID` or `SOURCE:ID`, or by a pseudonym of 32 hex digits.

    Erased stays erased; a retired labeler can be erased. Whoever was never seen in the project must
    be said to be so (`never_seen`): an id with a slip in it would leave, and its labeler stay.

    Releases that drew their labels, or would repeat them, and were never finished are given up:
    their charges stay. Raises `LedgerError` for an id that was never seen, `ProjectBusy` while a
    job runs.
    """
    with OpenProject.hold_for_job(project) as opened:
        ledger = opened.ledger
        leaver = _find_leaver(labeler_id, opened, never_seen)
        epoch = ledger.begin_job()
        ledger.refund_reserved(epoch, resumed=None)
        report = _build_removal_report(leaver, kind)
        ledger.people.add_tombstone(epoch, leaver.key, kind)
        for release_id in report.given_up:
            ledger.abandon(release_id, epoch)
        remove_leftovers(opened, ledger.releases.all())
        erased = report.kind == "erased"
        raw = leaver.purge_raw(epoch) if erased else leaver.raw_rows
        _remove_from_maps(leaver, epoch)
    return _add_rows_and_remains(report, leaver, raw)


def list_departures(project: Where = None) -> list[Departure]:
    """Return everybody who left, the first one first."""
    return OpenProject.open(project).ledger.people.departures()


def _find_leaver(labeler_id: str, opened: OpenProject, never_seen: bool) -> _Leaver:
    """Return the labeler with this id or pseudonym, known unless it is said that they were never
    seen.
    """
    labeler = _find_id_or_pseudonym(labeler_id, opened)
    if not (never_seen or _is_known(labeler) or labeler.raw_rows.rows):
        raise LedgerError(
            f"{linking.explain_unknown_id(labeler_id, opened)}; nothing was changed; --never-seen "
            "for somebody who leaves before any label came"
        )
    return labeler


def _find_id_or_pseudonym(labeler_id: str, opened: OpenProject) -> _Leaver:
    """Return the labeler with this id or pseudonym; one that the project does not know goes by the
    id.

    An id comes first: nobody can choose one by which another labeler leaves in their place.
    """
    links = opened.ledger.people.links()
    key = linking.parse_labeler_ids([labeler_id], opened)[0]
    by_id = _Leaver(opened, key, links.unit_of(key))
    if not linking.PSEUDONYM.fullmatch(labeler_id) or _is_known(by_id):
        return by_id
    pseudonym = blocks.from_bytes(bytes.fromhex(labeler_id))
    by_name = _Leaver(opened, pseudonym, links.unit_of(pseudonym))
    return by_name if _is_known(by_name) else by_id


def _is_known(leaver: _Leaver) -> bool:
    """Return whether the project has met the labeler."""
    return bool(linking.are_known(leaver.ledger, leaver.key)[0] or leaver.charges)


def _remove_from_maps(leaver: _Leaver, epoch: int) -> None:
    """Take their rows out of every private map.

    New files are written beside the old ones, the ledger takes the digests that follow, and then
    the files change places; whoever opens the maps next completes what a crash left.
    """
    private_map, maps = leaver.opened.private_map, leaver.opened.map_digests
    private_map.finish_rewriting(maps)
    changed = [release for release in maps if private_map.rewrite_without(release, leaver.key)]
    if changed:
        digests = {release: private_map.digest(release, rewritten=True) for release in changed}
        leaver.ledger.releases.replace_map_digests(epoch, digests)
        private_map.finish_rewriting(digests)


def _build_removal_report(leaver: _Leaver, kind: Leaving) -> RemovalReport:
    """Report what the ledger and private maps hold of a labeler, and what their removal means."""
    ledger = leaver.ledger
    gone = {one.pseudonym: one.kind for one in ledger.people.departures()}
    before, uses = gone.get(leaver.pseudonym), leaver.charges
    kind = "erased" if before == "erased" else kind
    charged = [r for r in ledger.releases.all() if r.number in uses and r.state != "reserved"]
    total = pricing.sum_budgets(ledger.people.policies_affecting(leaver.unit))
    private_map, maps = leaver.opened.private_map, leaver.opened.map_digests
    private_map.check(maps)
    linked = ledger.people.links().find_linked(leaver.key)
    active = linked[blocks.find_positions(ledger.people.tombstones(), linked) < 0]
    taken = dict.fromkeys(EVENTS, 0)
    for record in charged:
        taken[record.event] += uses[record.number]
    return RemovalReport(
        leaver.pseudonym,
        kind,
        before,
        known=_is_known(leaver),
        shared=len(linked) > 0,
        linked=sorted(blocks.to_hex(key) for key in active),
        rows_remembered=sum(
            len(private_map.find_row_keys(release, leaver.key)) for release in maps
        ),
        given_up=[r.id for r in _list_releases_to_abandon(leaver, kind, uses)],
        releases=[
            ReleaseUse(
                r.id, r.created_at, r.state, r.settings["mechanism"], r.event, uses[r.number]
            )
            for r in charged
        ],
        randomized_blocks=taken["rr"],
        statistic_releases=taken["statistic"],
        epsilon=total.epsilon,
        delta=total.delta,
    )


def _add_rows_and_remains(report: RemovalReport, leaver: _Leaver, raw: RawRows) -> RemovalReport:
    """Return the report with raw rows and what remains."""
    report = replace(
        report,
        known=report.known or raw.rows > 0,
        rows_set_aside=raw.rows,
        stored_answers=raw.answers,
        unreadable_files=list(raw.unreadable),
    )
    return replace(report, remains=_list_what_remains(report, leaver))


def _list_releases_to_abandon(
    leaver: _Leaver, kind: Leaving, charges: Collection[int]
) -> list[ReleaseRecord]:
    """Releases that were begun with labels of theirs and can no longer be finished: charged to
    them, drawn for them (be it charged to contents), or kept on disk with rows of theirs.
    """
    # Where contents are the unit, whose labels are in a sum is not known.
    hidden = kind == "erased" and _are_units_contents(leaver.ledger)
    sums = {one.name for one in EVENTS.values() if hidden and not one.keeps_values}
    keys = leaver.row_keys
    return [
        record
        for record in leaver.ledger.releases.all()
        if record.is_unfinished
        and (
            record.number in charges
            or record.event in sums
            or (record.map and leaver.opened.private_map.find_row_keys(record.id, leaver.key))
            or _may_hold_rows(leaver, record, keys)
        )
    ]


def _may_hold_rows(leaver: _Leaver, record: ReleaseRecord, keys: Set[bytes]) -> bool:
    """Return whether saved rows of a release may be theirs, which have these `keys`."""
    saved = leaver.project.saved_rows(record.id)
    if not keys or not saved.parent.is_dir():
        return False
    drawn = saved / "outcomes"
    rows = buckets.read_parts(drawn) if drawn.is_dir() else None
    # Stages without their rows do not tell whose labels they learned from.
    return rows is None or not keys.isdisjoint(blocks.to_list(buckets.read_blocks(rows, "key")))


def _are_units_contents(ledger: Ledger) -> bool:
    """Return whether contents are the unit, so that charges tell no labeler."""
    return any(policy.unit == "item" for policy in ledger.policies.history())


def _list_what_remains(report: RemovalReport, leaver: _Leaver) -> list[str]:
    """Return what leaving does not undo, in sentences."""
    remains = []
    if any(release.state == "committed" for release in report.releases):
        remains += [
            "releases that were delivered cannot be recalled",
            "heads and models fitted on releases keep what they learned, under the same noise",
        ]
    remains += [
        "earlier backups still contain the private maps of their time",
        "raw input files, and exports made outside labelguard, are untouched",
        "other projects know nothing of it: repeat it in every project that they label in",
    ]
    if report.shared:
        remains.append("the charges are those of linked ids as well, which keep what they spent")
    if _are_units_contents(leaver.ledger):
        remains.append("contents are the unit here: which charges were theirs is not known")
    for record in leaver.ledger.releases.all():
        directory = leaver.project.stages / record.id
        if record.state == "abandoned" and directory.is_dir():  # else `remove_leftovers` removed it
            remains.append(
                f"a process still computes release {record.id}, which was given up: until it ends, "
                f"rows of theirs may be in {directory}; make sure of it then by running this again"
            )
    quarantine = leaver.project.quarantine
    if report.kind == "retired" and report.rows_set_aside:
        remains.append("their raw rows stay, unused; labelguard labeler erase removes them")
    elif report.kind == "erased" and any(quarantine.rglob("*.parquet")):
        remains.append(f"rows that name no labeler cannot be told apart and stay in {quarantine}")
    return remains
