"""Identities: a project's sources, and which of their ids share one budget.

These are what the commands `source` and `people` do. An id is given as `ID`, of the source that
`labelguard.toml` names, or as `SOURCE:ID`; a pseudonym serves as well. Every act is journaled and
lasts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from labelguard.answers import connector as connectors
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.keys.identities import Identities
from labelguard.ledger import people
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.records import Links
from labelguard.ledger.sources import People, SourceRecord, end_holds
from labelguard.project.opening import OpenProject, Where
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

if TYPE_CHECKING:
    from labelguard.inputs.sources import Input


@dataclass(frozen=True)
class LinkedId:
    """One of two ids that were linked."""

    # where the id comes from
    source: str
    # 32 hexadecimal digits
    pseudonym: str
    # whether the project had met it
    known: bool


@dataclass(frozen=True)
class Linked:
    """Two ids that share one budget."""

    # how many labelers are new among those who are linked
    linked: int
    # both ids
    ids: list[LinkedId]


@dataclass(frozen=True)
class LinkedTable:
    """Many that do."""

    # how many labelers are new among those who are linked
    linked: int
    # pairs that were read
    pairs: int


@dataclass(frozen=True)
class Membership:
    """A labeler who shares a budget with others."""

    # the pseudonym of the one of them who names the budget
    unit: str
    # the labeler's
    labeler: str


@dataclass(frozen=True)
class WhoIsWho:
    """The sources of labelers' ids, and the ids that share a budget."""

    # oldest first
    sources: list[SourceRecord]
    # by the labeler who names the budget
    linked: list[Membership]


PSEUDONYM = re.compile("[0-9a-f]{32}")
_TABLE = ("labeler_id", "same_as")
_LONGEST_ID = 60  # characters of an id in a message


def parse_labeler_ids(texts: Sequence[str], opened: OpenProject) -> tuple[Blocks, list[str]]:
    """Return the keys of labelers, (n, 2), each given as `ID` or `SOURCE:ID`, and the source of
    each.

    Only sources of the project count as such, the longest name first: an id may have colons of its
    own. A bare id is of the source that labelguard.toml names or, if nothing came of that, of the
    only one there is. Raises `InvalidLabels` for an empty id.
    """
    project, keys = opened.project, opened.keys
    known = _list_source_names(opened)
    own = known[0] if project.namespace not in known and len(known) == 1 else project.namespace
    names = sorted({*known, own}, key=len, reverse=True)

    def split(text: str) -> tuple[str, str]:
        source = next((name for name in names if text.startswith(f"{name}:")), None)
        return (source, text[len(source) + 1 :]) if source else (own, text)

    pairs = [split(text) for text in texts]
    if not all(labeler_id.strip() for _, labeler_id in pairs):
        raise InvalidLabels("expected a labeler's id, found an empty one")
    sources = np.array([source for source, _ in pairs], dtype=object)
    labelers = np.zeros((len(pairs), 2), np.uint64)
    for source in dict.fromkeys(sources):
        rows = np.flatnonzero(sources == source)
        labelers[rows] = keys.hash_labelers(source, [pairs[row][1] for row in rows.tolist()])
    return labelers, sources.tolist()


def _list_source_names(opened: OpenProject) -> list[str]:
    """Return the names of all sources: of releases, of what was ingested, and of connectors."""
    released = [record.name for record in opened.ledger.people.sources()]
    settings = connectors.read_all_settings(opened.project.connectors)
    connected = [one.source for one in settings.values()]
    return list(dict.fromkeys([*released, *opened.answers.list_sources(), *connected]))


def resolve_ids_or_pseudonyms(
    texts: Sequence[str], opened: OpenProject
) -> tuple[Blocks, list[str]]:
    """Return keys and sources like `parse_labeler_ids`, but a pseudonym of somebody whom the ledger
    knows is taken for it.
    """
    ledger = opened.ledger
    keys, sources = parse_labeler_ids(texts, opened)
    rows = np.array([row for row, t in enumerate(texts) if PSEUDONYM.fullmatch(t)], np.intp)
    labelers = blocks.from_bytes(bytes.fromhex("".join(texts[row] for row in rows.tolist())))
    met = are_known(ledger, labelers)
    keys[rows[met]] = labelers[met]
    return keys, sources


def are_known(ledger: Ledger, labelers: Blocks) -> NDArray[np.bool_]:
    """Return a mask of labelers that the ledger knows: met, linked, or gone."""
    mask: NDArray[np.bool_] = blocks.find_positions(ledger.people.known().labelers, labelers) >= 0
    return mask


def explain_unknown_id(text: str, opened: OpenProject) -> str:
    """Return the error message for an unknown `ID` or `SOURCE:ID`.

    It has pseudonyms of labelers whose ids differ only in how they are written.
    """
    key, [source] = parse_labeler_ids([text], opened)
    own = Identities.of(opened.keys, source, [text.removeprefix(f"{source}:")], key)
    others = opened.ledger.people.known().without(own)
    similar = _format_pseudonyms(others.labelers[(others.forms == own.forms).all(axis=1)])
    who = "nobody with this id was ever seen in this project"
    if similar:
        who += (
            f"; it is written almost like that of labeler {', '.join(similar)}, whom the project "
            "knows: give their id as your files write it, or that pseudonym"
        )
    return who


def add_source(name: str, people: People, project: Where = None) -> SourceRecord:
    """Let labels of another source in, whose people are all `new` to the project, or some `known`.

    Where some are known, nothing of the source is released until a table links its ids
    (`link_table`), or the source is added again with all `linked`, or all `new`: who is charged
    under two ids stays two for good. Raises `PolicyError` for any other source that there is.
    """
    if not name or not name.isprintable() or name != name.strip() or len(name) > 200:
        raise PolicyError("a source's name has 1 to 200 printable characters, no blank at its ends")
    if people not in get_args(People):
        raise PolicyError(f"people must be {', '.join(get_args(People))}, found {people!r}")
    with OpenProject.hold_for_job(project) as opened:
        ledger = opened.ledger
        return ledger.people.add_source(ledger.begin_job(), name, people)


def list_people(project: Where = None) -> WhoIsWho:
    """Return the project's sources, and who shares a budget with whom, by pseudonyms."""
    ledger = OpenProject.open(project).ledger
    links = ledger.people.links()
    linked = sorted(zip(*map(_format_pseudonyms, (links.units, links.labelers)), strict=True))
    return WhoIsWho(ledger.people.sources(), [Membership(*pair) for pair in linked])


def link_two_ids(one: str, other: str, project: Where = None) -> Linked:
    """Record, for good, that two ids share one budget: of a person, a household, a team.

    Their labels stay those of each: two labels of one item stay two. At most one of them may have
    been charged before; the other then takes from what that one has left. Released labels keep
    their values. Raises `PolicyError` for two who were charged apart, for somebody who has left,
    and while a release is unfinished, `InvalidLabels` for somebody whom the project knows under
    another spelling of their id.
    """
    with OpenProject.hold_for_job(project) as opened:
        pair, sources = resolve_ids_or_pseudonyms((one, other), opened)
        if (pair[0] == pair[1]).all():
            raise InvalidLabels("these are one id already; name two")
        known, names = are_known(opened.ledger, pair).tolist(), _format_pseudonyms(pair)
        two = [LinkedId(*facts) for facts in zip(sources, names, known, strict=True)]
        met = _identify(_strip_sources((one, other), sources), sources, pair, opened)
        return Linked(_link_labelers(opened, pair[:1], pair[1:], met), two)


def link_table(source: Input, project: Where = None) -> LinkedTable:
    """`link_two_ids` for many: a table, in any format of labels, with one pair of ids in each row.

    Its columns are named by two sources of the project, whose ids they hold, or are `labeler_id`
    and `same_as`, with ids as in `link_two_ids`. All of it is taken, or nothing. A source
    is held no longer of which it links an id to somebody of another one whom the project knows.
    """
    from labelguard.inputs import staging

    with OpenProject.hold_for_job(project) as opened:
        home = opened.project
        names = [record.name for record in opened.ledger.people.sources()]
        home.work.mkdir(mode=0o700, parents=True)
        rows = staging.read_ids(source, lambda these: _choose_id_columns(these, names), home.work)
        keys: list[Blocks] = []
        met: list[Identities] = []
        owners: list[list[str]] = []
        for name in rows.columns:
            texts = rows[name].to_list()
            # Of which source a pseudonym is, is not known.
            pseudonyms = [bool(PSEUDONYM.fullmatch(text)) for text in texts]
            if name in _TABLE:
                labelers, sources = resolve_ids_or_pseudonyms(texts, opened)
                texts = _strip_sources(texts, sources)
            else:
                labelers, sources = opened.keys.hash_labelers(name, texts), [name] * len(texts)
            keys.append(labelers)
            named = zip(sources, pseudonyms, strict=True)
            owners.append(["" if is_pseudonym else source for source, is_pseudonym in named])
            met += _identify(texts, sources, labelers, opened)
        linked = _find_linked_sources(opened, keys, owners)
        return LinkedTable(_link_labelers(opened, keys[0], keys[1], met, linked), len(rows))


def _find_linked_sources(
    opened: OpenProject, keys: Sequence[Blocks], owners: Sequence[Sequence[str]]
) -> set[str]:
    """Return the sources of which a row links an id to somebody of another one who is known.

    Both have two columns: the labelers, and of which source each is, "" where that is not known.
    """
    linked = set()
    for one, other in ((0, 1), (1, 0)):
        known = are_known(opened.ledger, keys[other]).tolist()
        for mine, theirs, is_known in zip(owners[one], owners[other], known, strict=True):
            if is_known and mine and theirs and mine != theirs:
                linked.add(mine)
    return linked


def _choose_id_columns(columns: Sequence[str], sources: Sequence[str]) -> Sequence[str]:
    held = [name for name in columns if name in sources]
    if len(held) == 2 and not set(_TABLE) <= set(columns):
        return held
    return _TABLE


def _strip_sources(texts: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Return the ids of texts like `ID` or `SOURCE:ID`."""
    return [text.removeprefix(f"{source}:") for text, source in zip(texts, sources, strict=True)]


def _identify(
    ids: Sequence[str], sources: Sequence[str], labelers: Blocks, opened: OpenProject
) -> list[Identities]:
    """Return the identities of `labelers`, source by source, but for those of pseudonyms."""
    identities, every = [], blocks.unique(labelers)[0]
    for source in dict.fromkeys(sources):
        pairs = zip(ids, sources, strict=True)
        names = sorted({name for name, own in pairs if own == source})
        keys = opened.keys.hash_labelers(source, names)
        by_id = np.flatnonzero(blocks.find_positions(every, keys) >= 0)
        named = [names[row] for row in by_id.tolist()]
        identities.append(Identities.of(opened.keys, source, named, keys[by_id]))
    return identities


def _link_labelers(
    opened: OpenProject,
    labelers: Blocks,
    same: Blocks,
    met: Sequence[Identities],
    complete: Collection[str] = (),
) -> int:
    """Link labelers row by row; of the sources `complete`, nobody else is to be linked."""
    # A release that was begun was planned with the units of before.
    epoch = opened.begin_epoch_between_releases()
    with opened.ledger.transaction(epoch) as connection:
        count = people.link_labelers(connection, labelers, same, met)
        known, links = people.read_known_people(connection), people.read_links(connection)
        for each in met:
            refuse_lookalikes(each, known, links)
        end_holds(connection, complete)
        return count


def _format_pseudonyms(labelers: Blocks) -> list[str]:
    """Return pseudonyms as 32 hexadecimal digits each."""
    return [blocks.to_hex(key) for key in labelers]


def refuse_lookalikes(listed: Identities, known: Identities, links: Links) -> None:
    """Raise `InvalidLabels` for a labeler of the input who may be another one, written otherwise.

    `listed` are the labelers of an input (labels, or a table of links), `known` those whom the
    project has met. Whoever is linked shares a budget, so that nothing is refused. The message
    names ids of the input, and pseudonyms of others.
    """
    rest = known.without(listed)
    labelers = np.concatenate([listed.labelers, rest.labelers])
    forms, form = blocks.unique(np.concatenate([listed.forms, rest.forms]))
    if len(forms) == len(labelers):
        return
    shared = np.flatnonzero(np.bincount(form)[form] > 1)  # those of the input first
    classes: dict[int, dict[bytes, int]] = {}
    units = blocks.to_list(links.unit_of(labelers[shared]))
    for row, unit in zip(shared.tolist(), units, strict=True):
        classes.setdefault(int(form[row]), {}).setdefault(unit, row)
    for first, *others in (list(rows.values()) for rows in classes.values()):
        if others and first < len(listed.labelers):
            raise InvalidLabels(_explain_lookalikes(listed, labelers, first, others[0]))


def _explain_lookalikes(listed: Identities, labelers: Blocks, first: int, second: int) -> str:
    """Return the error message about two rows of `labelers`, the first of whom is in the input."""
    if second < len(listed.labelers):
        one, other = sorted((listed.names[first], listed.names[second]))
        who = f"labeler ids {_quote_in_ascii(one)} and {_quote_in_ascii(other)}"
    else:
        pseudonym = blocks.to_hex(labelers[second])
        who = f"labeler id {_quote_in_ascii(listed.names[first])} and that of labeler {pseudonym}"
        who += ", whom the project knows,"
    return (
        f"{who} differ only in how they are written, and each would have a budget; let them share "
        "one, for good, be they one person or two: labelguard people link ID ID (their labels stay "
        "apart). Never rename an id that was charged: that would start its budget anew"
    )


def _quote_in_ascii(name: str) -> str:
    """Return an id in a message, in ASCII: what looks alike differs there."""
    return ascii(name if len(name) <= _LONGEST_ID else name[:_LONGEST_ID] + "…")
