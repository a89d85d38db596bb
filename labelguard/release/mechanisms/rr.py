"""`--mechanism rr`: every label is flipped with a known probability.

Labels decide in `randomize_bucket`, and nowhere else: labels in, the PRIVATE map and released rows
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.accounting.kary import KAry
from labelguard.budget.event_kind import PAIR, Price
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.budget.policy import Policy
from labelguard.errors import PolicyError
from labelguard.keys.coins import Coins
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import randomized_response
from labelguard.mechanisms.randomized_response import (
    randomize,
    randomize_choices,
)
from labelguard.project import private_map
from labelguard.release import card, selection
from labelguard.release.choices import BucketChoices
from labelguard.release.protocol import Finished, Mechanism, Prepared, ReleaseContext
from labelguard.release.selection import PlannedRows, SelectedRows
from labelguard.storage import buckets

CHOICE_ROWS = (
    "each choice is one randomized answer, shown as the pairs (released choice, another response); "
    "flip_probability is the share of such pairs expected to be turned"
)


# 64-bit coins choose evenly among 256 up to an ε0 of 4e-15.
LEAST_EPSILON0 = 1e-12


class RandomizedResponse(Mechanism[Prepared]):
    """Randomized response: the released labels are the coins' answers, with their γ."""

    name = randomized_response.NAME
    version = randomized_response.VERSION
    priced = RANDOMIZED_LABELS.name
    choices = True

    def __init__(self, options: object = None) -> None:
        """There is nothing to choose."""

    def prepare(
        self, context: ReleaseContext, plan: PlannedRows, recorded: Mapping[str, Any] | None
    ) -> Prepared:
        """Nothing to choose. `PolicyError` where no coin can be fair enough for choices."""
        most = int(plan.capacity.max(initial=1))
        if context.staged.choices and context.policy.epsilon / most < LEAST_EPSILON0:
            raise PolicyError(
                f"ε = {context.policy.epsilon:g} for {most} choices is too small: at least "
                f"{LEAST_EPSILON0:g} for each"
            )
        return Prepared(plan, {})

    def draw(
        self, context: ReleaseContext, prepared: Prepared, grant: Grant, map_path: Path | None
    ) -> None:
        """Draw the coins of new labels; the released rows are known with them."""
        draw_labels(context, prepared, grant, map_path)

    def finish(self, context: ReleaseContext, prepared: Prepared, grant: Grant) -> Finished:
        """The rows as drawn."""
        return Finished(randomized_card(context), ((context.staged, context.outcomes),))


@dataclass(frozen=True)
class Randomizing:
    """A task for `randomize_bucket`: where rows are, and what is drawn for them.

    `selected` are a plan's rows, `staged` those of the input; released rows go to `outcomes`, the
    map to `map_path`. Without it (the release was drawn before, and is being finished) the plan
    holds no new label, and the label column is not read. `coins` are of this release alone and end
    with it; `prices` says for every k what a label costs. `labelers`: rows say whose they are;
    `choices`: they are pairs of choices.
    """

    staged: Path
    selected: Path
    outcomes: Path
    map_path: Path | None
    policy: Policy
    prices: Mapping[int, Price]
    coins: Coins
    labelers: bool
    choices: bool


def draw_labels(
    context: ReleaseContext, prepared: Prepared, grant: Grant, map_path: Path | None
) -> None:
    """Draw every new label of the plan, once, into the private map begun at `map_path`."""
    task = Randomizing(
        context.staged.rows_directory,
        prepared.plan.directory,
        context.outcomes,
        map_path,
        context.policy,
        grant.prices,
        Coins.fresh(),
        context.staged.labelers,
        context.staged.choices,
    )
    for _ in context.over_buckets("randomizing", randomize_bucket, task):
        pass


def randomize_bucket(task: Randomizing, bucket: int) -> None:
    """Draw the new labels of one bucket and write down all of its released rows, by item."""
    selected = selection.read_selected(task.selected, task.staged, bucket)
    if selected is None:
        return
    rows, table = selected
    choices = BucketChoices.of_bucket(table, labelers=task.labelers) if task.choices else None
    value, threshold = rows.value.copy(), rows.threshold.copy()
    new = np.flatnonzero(rows.new)
    if len(new) and task.map_path:
        fresh = rows[new]
        label = buckets.column(table, "label").astype(np.uint8)
        if choices is None:
            value[new], threshold[new] = _draw_pairs(task, fresh, label)
        else:
            value[new], threshold[new] = _draw_choices(task, fresh, label, choices)
        private_map.write_bucket(
            *(task.map_path, bucket, fresh.key, fresh.author, fresh.version),
            *(value[new], threshold[new], fresh.content),
        )
    if choices is None:
        index, label_of = rows.index, np.arange(len(rows.index))
        flips = threshold / 2.0**64
    else:
        options = choices.options[choices.led_by(rows.index)]
        index, label_of, value = choices.pairs_with(rows.index, value)
        flips = _pair_flip_probabilities(threshold, options)[label_of]
    released = pa.table(
        {
            "row": buckets.column(table, "row")[index],
            "key_hi": rows.key[label_of, 0],
            "key_lo": rows.key[label_of, 1],
            "value": value,
            "flip_probability": flips,
        }
    )
    items = buckets.blocks(table, "item")[index]
    buckets.write_part(task.outcomes, bucket, released, buckets.bucket_of(items))


# Released values and the thresholds that their coins were compared with, each (n,).
DrawnValues: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.uint64]]


def _draw_pairs(task: Randomizing, rows: SelectedRows, label: NDArray[np.uint8]) -> DrawnValues:
    """Draw labels of pairs; `label` is that of all staged rows."""
    bounds, bound = np.unique(rows.capacity, return_inverse=True)
    prices = [task.prices[int(k)]["threshold"] for k in bounds]
    threshold = np.array(prices, np.uint64)[bound]
    return randomize(label[rows.index], task.coins, rows.key, threshold), threshold


def _draw_choices(
    task: Randomizing, rows: SelectedRows, label: NDArray[np.uint8], choices: BucketChoices
) -> DrawnValues:
    """Draw choices, each among its own number of responses at no more than the price of fewest."""
    choice = choices.led_by(rows.index)
    options = choices.options[choice]
    priced, which = np.unique(np.stack([rows.capacity, options]), axis=1, return_inverse=True)
    thresholds = [_threshold(task.prices[k], among) for k, among in priced.T.tolist()]
    threshold = np.array(thresholds, np.uint64)[which.ravel()]
    chosen = choices.chosen_numbers(label)[choice]
    return randomize_choices(chosen, task.coins, rows.key, threshold, options), threshold


def _threshold(price: Price, options: int) -> int:
    """Return the threshold of a choice among `options`, at a price for as many or fewer."""
    return KAry(price.get("options", PAIR)).among(options, price["threshold"])


def randomized_card(context: ReleaseContext) -> dict[str, Any]:
    """Return the card of a release from randomized labels.

    Flip probabilities are over the labels; those of earlier releases have theirs.
    """
    policy = context.policy
    kind = "randomized response"
    fewest = context.allowance.choices
    if context.staged.choices or fewest > PAIR:
        kind = f"K-ary randomized response, K = {fewest} or more"
    rows = buckets.read_parts(context.outcomes)
    flips: NDArray[np.float64] = np.zeros(0)
    if rows is not None:
        flips = buckets.column(rows, "flip_probability").astype(np.float64)
    spread = card.spread(flips)
    differ = spread and spread["min"] < spread["max"]
    return {
        "privacy": {
            "accounting": f"exact composition of {kind}"
            + card.joint_price_note(policy, RANDOMIZED_LABELS.name)
        },
        "flip_probability": spread,
        **({"choices": {"fewest": fewest, "rows": CHOICE_ROWS}} if context.staged.choices else {}),
        "train_with": "forward",
        "not_protected": [card.LINKABLE] if differ else [],
    }


def _pair_flip_probabilities(
    threshold: NDArray[np.uint64], options: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return γ of the pairs of every choice, (choices,)."""
    both, index = np.unique(
        np.stack([threshold, options.astype(np.uint64)]), axis=1, return_inverse=True
    )
    flip_probability = RANDOMIZED_LABELS.pair_flip_probability
    return np.array([flip_probability(*each) for each in both.T.tolist()], np.float64)[
        index.ravel()
    ]
