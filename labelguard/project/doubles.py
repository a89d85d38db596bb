"""Whether somebody in an input is somebody whom the project knows under another spelling."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from labelguard.errors import InvalidLabels
from labelguard.keys.identities import Identities
from labelguard.ledger.records import Groups
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

_SHOWN = 60


def refuse_doubles(
    found: Identities,
    known: Identities,
    groups: Groups,
    distinct: tuple[Blocks, Blocks],
) -> None:
    """Raise `InvalidLabels` for a labeler of the input who may be another one, written otherwise.

    `found` are the labelers of an input (labels, or a list of groups), `known` those whom the
    project has met. Who shares a unit in `groups` is one person; the pairs in `distinct` were said
    to be two. The message names ids of the input, and pseudonyms of others.
    """
    rest = known.without(found)
    labelers = np.concatenate([found.labelers, rest.labelers])
    forms, form = blocks.unique(np.concatenate([found.forms, rest.forms]))
    if len(forms) == len(labelers):
        return
    shared = np.flatnonzero(np.bincount(form)[form] > 1)
    units = groups.unit_of(labelers[shared])
    two = {frozenset(pair) for pair in zip(*map(_rows, map(groups.unit_of, distinct)), strict=True)}
    classes: dict[int, dict[tuple[int, int], int]] = {}
    for row, unit in zip(shared.tolist(), _rows(units), strict=True):
        classes.setdefault(int(form[row]), {}).setdefault(unit, row)  # those of the input first
    for people in classes.values():
        for (one, first), (other, second) in combinations(people.items(), 2):
            if first < len(found.labelers) and frozenset((one, other)) not in two:
                raise InvalidLabels(_double(found, labelers, first, second))


def _rows(keys: Blocks) -> list[tuple[int, int]]:
    return [(high, low) for high, low in keys.tolist()]


def _double(found: Identities, labelers: Blocks, first: int, second: int) -> str:
    """What is said of two rows of `labelers`, of whom the first is in the input."""
    if second < len(found.labelers):
        one, other = sorted((found.names[first], found.names[second]))
        who = f"labeler ids {_shown(one)} and {_shown(other)}"
    else:
        pseudonym = blocks.to_hex(labelers[second])
        who = f"labeler id {_shown(found.names[first])} and that of labeler {pseudonym}"
        who += ", whom the project knows,"
    return (
        f"{who} differ only in how they are written, and each would have a budget; write one like "
        "the other or, for good, say that they are two people (labelguard policy distinct ID ID) "
        "or one (labelguard people link ID ID)"
    )


def _shown(name: str) -> str:
    """An id in a message, in ASCII: what looks alike differs there."""
    return ascii(name if len(name) <= _SHOWN else name[:_SHOWN] + "…")
