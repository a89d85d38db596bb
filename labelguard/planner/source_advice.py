"""Whether heads should learn from sources alone, or from sources beside other features.

Of m sources a head learns m − 1 differences: the directions of the group `source`, fewer where some
were never compared with others, and within strata those of each. On held-out data of two kinds,
sources alone predict best where a release of so few labelers has room for all of these directions,
and worst where it has not: then they are one more group, of which the leading directions are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from labelguard.learning.features import Group, default_features
from labelguard.mechanisms.geometry import spectrum
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.components import Directions, Noises
from labelguard.terms import counted

__all__ = ["alone", "directions", "notes"]


def alone(directions: int, components: int) -> bool:
    """The rule: sources alone, if the planned number of components holds all their directions."""
    return directions <= components


def notes(
    x: NDArray[np.float32], rows: Rows, groups: Sequence[Group], noises: Mapping[float, Noises]
) -> tuple[str, ...]:
    """What the rule says of an input at each ε, where its features have sources; else nothing.

    `x` is (pairs, d), with the columns of `groups`; `noises` are what each ε buys. The room is that
    of a release on sources alone, whatever stands beside them here.
    """
    said = []
    for group in groups:
        own = x[:, group.start : group.stop]
        if group.name.startswith("source:") and own.any():
            found = Directions.of_features(own, rows)
            room = {epsilon: found.best(of) for epsilon, of in noises.items()}
            said.append(_said(group, directions(own), room))
    return tuple(said)


def directions(x: NDArray[np.float32]) -> int:
    """How many directions differences of indicators have, (pairs, sources): as many as a release of
    them could have components.
    """
    return spectrum(x).rank if x.any() else 0


def _said(group: Group, count: int, planned: dict[float, int]) -> str:
    fitting = [f"{epsilon:g}" for epsilon, room in planned.items() if alone(count, room)]
    other = [f"{epsilon:g}" for epsilon, room in planned.items() if not alone(count, room)]
    said = (
        f"{group.name} has {counted(count, 'direction')}; a release on sources alone has room for "
        f"{', '.join(f'{room} at ε = {epsilon:g}' for epsilon, room in planned.items())}"
    )
    ways = []
    if fitting:
        ways.append(f"sources alone at ε = {', '.join(fitting)}: --features {group.name}")
    if other:
        beside = f"{default_features()}+{group.name}"
        ways.append(f"sources beside others at ε = {', '.join(other)}: --features {beside}")
    return f"{said}; best take {'; '.join(ways)}"
