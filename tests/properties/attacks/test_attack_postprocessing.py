"""An attack on what follows from a noisy statistic: does any of it look at labels once more?

Coefficients, their errors, scores of systems, shares, the scale of probabilities and every label of
the teacher are functions of the noisy sum and of public columns. So with the sum held fixed, all
that leaves the project is the same, whatever the labels are and however the file is sorted.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import world
from support.arenas import arena

import labelguard as lg
from labelguard.analysis.leaderboard import leaderboard
from labelguard.mechanisms import statistic
from labelguard.release import head

OPTIONS: dict[str, Any] = {
    "mechanism": "statistic",
    "features": "length+source:model,by=language",
    "public_columns": ["language", "model"],
}
FIRST = arena(judges=24, labels=12)


def labels(name: str) -> pl.DataFrame:
    """The same comparisons with other labels, or in another order."""
    label = pl.col("label")
    return {
        "as they are": FIRST,
        "the other way": FIRST.with_columns(label=1 - label),
        "ties": FIRST.with_columns(label=pl.lit(0.5)),
        "sorted": FIRST.with_columns(label=1 - label).sort("label", "model_a"),
    }[name]


def left(name: str, empty: Path, here: Path) -> tuple[bytes, str, str, object]:
    """Everything about the head that leaves a copy of one project, and the labels it gave."""
    shutil.copytree(empty, here)
    made = lg.privatize(labels(name), project=here, epsilon=1, delta=1e-5, **OPTIONS)
    rows = lg.load(made, "polars").sort("prompt", "chosen", "rejected", "item_id").write_ndjson()
    card = {**made.card["statistic"], **made.card["head"]}
    return (made.path / head.FILE).read_bytes(), rows, str(card), leaderboard(made.path)


def found(tmp_path: Path, *names: str) -> list[tuple[bytes, str, str, object]]:
    """What leaves copies of a project, each with other labels."""
    empty = tmp_path / "empty"
    lg.init(empty)
    return [left(name, empty, tmp_path / name) for name in ("as they are", *names)]


def test_with_the_noisy_sum_held_fixed_labels_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.hold_noisy_sum(monkeypatch)
    first, *others = found(tmp_path, "ties", "sorted")
    for other in others:
        for one, same in zip(first, other, strict=True):
            assert one == same


@pytest.mark.slow
def test_the_test_sees_a_sum_that_follows_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without noise the same files differ; sorting alone still changes nothing."""
    monkeypatch.setattr(statistic, "add_noise", lambda total, grid, nonce: total)
    as_they_are, other, ties, resorted = found(tmp_path, "the other way", "ties", "sorted")
    assert len({one[0] for one in (as_they_are, other, ties)}) == 3
    assert as_they_are[1] != other[1]
    assert other == resorted
