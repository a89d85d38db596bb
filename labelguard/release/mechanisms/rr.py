"""`--mechanism rr`: every label is flipped with a known probability.

Labels decide in `randomize_bucket`, and nowhere else: labels in, the PRIVATE map and released rows
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.accounting.blocks import Block, find_block
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.keys.keyring import Coins
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import randomized_response
from labelguard.mechanisms.randomized_response import (
    LabelBlocks,
    flip_probabilities,
    randomize,
)
from labelguard.project import private_map
from labelguard.release import card, selection
from labelguard.release.protocol import Finished, Mechanism, Prepared, ReleaseContext
from labelguard.release.selection import PlannedRows, SelectedRows
from labelguard.storage import blocks, buckets


class RandomizedResponse(Mechanism[Prepared]):
    """Randomized response: labels are released as they were drawn, each with its γ."""

    name = randomized_response.NAME
    version = randomized_response.VERSION
    priced = RANDOMIZED_LABELS.name

    def __init__(self, options: object = None) -> None:
        """There is nothing to choose."""

    def prepare(
        self, context: ReleaseContext, plan: PlannedRows, recorded: Mapping[str, Any] | None
    ) -> Prepared:
        """Nothing to choose."""
        return Prepared(plan, {})

    def draw(
        self, context: ReleaseContext, prepared: Prepared, grant: Grant, map_path: Path | None
    ) -> None:
        """Draw the coins of new labels; the released rows are known with them."""
        draw_labels(context, prepared, grant, map_path)

    def finish(self, context: ReleaseContext, prepared: Prepared, grant: Grant) -> Finished:
        """The rows as drawn."""
        return Finished(build_randomized_card(context), ((context.staged, context.outcomes),))


@dataclass(frozen=True)
class Randomizing:
    """A task for `randomize_bucket`: where rows are, and what is drawn for them.

    `selected` are a plan's rows, `staged` those of the input, in so many `buckets`; released rows
    go to `outcomes`, the map to `map_path`. Without it (the release was drawn before, and is being
    finished) the plan holds no new label, and the label column is not read. `coins` are of this
    release alone and end with it; `threshold` is the price of a block. `with_units`: released rows
    say whose they are.
    """

    staged: Path
    buckets: int
    selected: Path
    outcomes: Path
    map_path: Path | None
    threshold: int
    coins: Coins
    with_units: bool


def draw_labels(
    context: ReleaseContext,
    prepared: Prepared,
    grant: Grant,
    map_path: Path | None,
    *,
    with_units: bool = False,
) -> None:
    """Draw every new label of the plan, once, into the private map begun at `map_path`.

    `with_units`: released rows say, in scratch space, which unit each is of.
    """
    [price] = grant.prices.values()
    task = Randomizing(
        context.staged.rows_directory,
        context.staged.buckets,
        prepared.plan.directory,
        context.outcomes,
        map_path,
        price["threshold"],
        Coins.fresh(),
        with_units,
    )
    written = sum(context.over_buckets("randomizing", randomize_bucket, task))
    buckets.check_seen(written, buckets.count_part_rows(context.outcomes))


def randomize_bucket(task: Randomizing, bucket: int) -> int:
    """Draw the new labels of one bucket; write down its released rows, by item, and count them."""
    selected = selection.read_selected(task.selected, task.staged, bucket)
    if selected is None:
        return 0
    rows, table = selected
    drawn = {name: getattr(rows, name).copy() for name in _DRAWN}
    new = rows.new
    if new.any() and task.map_path:
        fresh, label = rows[new], buckets.read_column(table, "label").astype(np.uint8)
        for name, values in _draw_labels(task, fresh, label).items():
            drawn[name][new] = values
        columns = {name: values[new] for name, values in drawn.items()}
        columns |= {"version": fresh.version, "content": fresh.content}
        private_map.write_bucket(
            task.map_path, bucket, task.buckets, fresh.key, fresh.author, **columns
        )
    columns = {
        "row": buckets.read_column(table, "row")[rows.index],
        "key_hi": rows.key[:, 0],
        "key_lo": rows.key[:, 1],
        **drawn,
    }
    if task.with_units:
        columns |= {name: buckets.read_column(table, name)[rows.index] for name in _UNIT}
    columns["flip_probability"] = flip_probabilities(
        drawn["threshold"], drawn["block_labels"].astype(np.int64)
    )
    items = buckets.read_blocks(table, "item")[rows.index]
    targets = buckets.assign_buckets(items, task.buckets)
    buckets.write_part(task.outcomes, bucket, pa.table(columns), targets, task.buckets)
    return len(items)


_UNIT = ("unit_hi", "unit_lo")
# Columns of the private map that a draw decides: the value, and the law that it was drawn by.
_DRAWN = ("value", "threshold", "block_labels")


def _draw_labels(
    task: Randomizing, rows: SelectedRows, label: NDArray[np.uint8]
) -> dict[str, NDArray[Any]]:
    """Draw the labels of new rows; `label` is that of all staged rows. Returns `_DRAWN`."""
    together = LabelBlocks.of_rows(rows.block, task.threshold)
    value = randomize(label[rows.index], task.coins, rows.key, together)
    of = together.of
    return dict(zip(_DRAWN, (value, together.threshold[of], together.labels[of]), strict=True))


def build_randomized_card(context: ReleaseContext) -> dict[str, Any]:
    """Return the card of a release from randomized labels.

    Flip probabilities are over the rows; those of earlier releases have theirs. `blocks` say for
    each of them how many labels were drawn together, and the mean of the product of two of them.
    """
    policy = context.policy
    counted = np.hstack([*context.over_buckets("counting", count_rows_per_law, context.outcomes)])
    distinct, law = blocks.distinct_rows(*counted[:-1])
    counts = np.zeros(distinct.shape[1], np.int64)
    np.add.at(counts, law, counted[-1].astype(np.int64))
    buckets.check_seen(buckets.count_part_rows(context.outcomes), int(counts.sum()))
    laws = [
        _describe_block(find_block(*each), count)
        for each, count in zip(distinct.T.tolist(), counts.tolist(), strict=True)
    ]
    spread = _summarize_flips(np.array([law["flip_probability"] for law in laws]), counts)
    differ = spread and spread["min"] < spread["max"]
    return {
        "privacy": {
            "accounting": "exact composition of blocks of randomized response"
            + card.describe_joint_price(policy, RANDOMIZED_LABELS.name)
        },
        "flip_probability": spread | ({"blocks": laws} if laws else {}),
        "train_with": "forward",
        "not_protected": [card.LINKABLE] if differ else [],
    }


def count_rows_per_law(outcomes: Path, bucket: int) -> NDArray[np.uint64]:
    """Return the distinct laws of one bucket's released rows, and of how many rows each is.

    Shape (3, laws): threshold, labels, rows.
    """
    rows = buckets.read_parts(outcomes, bucket)
    if rows is None:
        return np.zeros((3, 0), np.uint64)
    distinct, law = blocks.distinct_rows(*(buckets.read_column(rows, name) for name in _DRAWN[1:]))
    return np.vstack([distinct, np.bincount(law).astype(np.uint64)])


def _summarize_flips(flips: NDArray[np.float64], rows: NDArray[np.int64]) -> dict[str, float]:
    """Return the spread of flip probabilities, each of which so many rows have."""
    if not len(flips):
        return {}
    order = np.argsort(flips)
    middle = np.searchsorted(
        np.cumsum(rows[order]), [(rows.sum() - 1) // 2, rows.sum() // 2], "right"
    )
    return card.compute_min_median_max(flips[order][[0, *middle, -1]])


def _describe_block(law: Block, rows: int) -> dict[str, Any]:
    return {
        "labels": law.labels,
        "flip_probability": law.flip_probability,
        "second_moment": law.mean_sign_product,
        "rows": rows,
    }
