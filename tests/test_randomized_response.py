"""Randomized response flips with the probability that is charged, and by nothing but its coins.

Statistical tests accept what happens unless it has a probability below FALSE_FAILURE under the
claim. They run on fixed keys, so they fail at random only when the streams of coins change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from preferences import repeatable_bytes
from scipy import stats

import labelguard as lg
from labelguard import pricing
from labelguard.accounting import randomized_response as accounting
from labelguard.block128 import Blocks, from_bytes, to_bytes
from labelguard.labels import LABEL_TIE
from labelguard.mechanisms.coins import Coins, Purpose
from labelguard.mechanisms.randomized_response import randomize, randomize_ternary
from labelguard.prf import Prf, derive_key

FALSE_FAILURE = 1e-6
ROWS = 200_000
LABELERS = 400
KEY = bytes(range(32))
GAMMA = 0.3
THRESHOLD = int(GAMMA * 2**64)


def fits(hits: int, trials: int, probability: float) -> bool:
    """Whether a count of hits is what a binomial variable may show."""
    return bool(stats.binomtest(hits, trials, probability).pvalue > FALSE_FAILURE)


def independent(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    """Whether two columns may be independent (chi-square on their table)."""
    _, a = np.unique(one, return_inverse=True)
    _, b = np.unique(other, return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    return bool(stats.chi2_contingency(table, correction=False).pvalue > FALSE_FAILURE)


class Rows:
    """Rows of labelers and items with distinct identities, and what is drawn for them."""

    def __init__(self, rows: int = ROWS, seed: str = "") -> None:
        salts = from_bytes(repeatable_bytes(f"salts{seed}")(16 * LABELERS))
        self.items = from_bytes(repeatable_bytes(f"items{seed}")(16 * rows))
        self.unit = np.arange(rows, dtype=np.intp) % LABELERS
        self.coins = Coins(Prf(KEY, 3), salts)
        self.identity = self.coins.identify(self.unit, self.items)
        self.pair = np.zeros(rows, np.uint16)
        self.version = np.zeros(rows, np.uint32)
        self.threshold = np.full(rows, THRESHOLD, np.uint64)

    def flips(self, **changed: int) -> NDArray[np.uint8]:
        """Released labels where every label is 0: which rows were flipped."""
        return self.released(np.zeros(len(self.unit), np.uint8), **changed)

    def released(
        self,
        labels: NDArray[np.uint8],
        draw: Callable[..., NDArray[np.uint8]] = randomize,
        **changed: int,
    ) -> NDArray[np.uint8]:
        columns = {"pair": self.pair, "version": self.version, "threshold": self.threshold}
        for name, value in changed.items():
            columns[name] = np.full_like(columns[name], value)
        return draw(labels, self.coins, self.identity, **columns)


@pytest.fixture(scope="module")
def rows() -> Rows:
    return Rows()


def constant(value: int) -> NDArray[np.uint8]:
    return np.full(ROWS, value, np.uint8)


def test_labels_are_flipped_with_the_probability_of_the_threshold(rows: Rows) -> None:
    assert fits(int(rows.flips().sum()), ROWS, GAMMA)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_sampler_that_is_ten_percent_off_is_rejected(factor: float, rows: Rows) -> None:
    flips = rows.flips(threshold=int(THRESHOLD * factor))
    assert not fits(int(flips.sum()), ROWS, GAMMA)


def test_a_flip_depends_on_the_coin_and_not_on_the_label(rows: Rows) -> None:
    flips = rows.flips()
    assert (rows.released(constant(1)) == 1 - flips).all()
    labels = np.random.default_rng(0).integers(0, 3, ROWS).astype(np.uint8)
    released = rows.released(labels)
    strict = labels != LABEL_TIE
    assert (released[strict] == labels[strict] ^ flips[strict]).all()
    assert set(np.unique(released)) == {0, 1}


def test_at_a_flip_probability_of_one_half_nothing_is_left_of_the_labels(rows: Rows) -> None:
    labels = np.random.default_rng(0).integers(0, 3, ROWS).astype(np.uint8)
    released = rows.released(labels, threshold=1 << 63)
    assert independent(released, labels)
    assert fits(int(released.sum()), ROWS, 0.5)


def test_every_row_has_a_coin_of_its_own(rows: Rows) -> None:
    drawn = rows.coins.draw(Purpose.FLIP, rows.identity, rows.pair, rows.version, rows.threshold)
    # 64-bit coins of 200,000 rows collide with probability 1e-9.
    assert len(np.unique(drawn)) == ROWS
    assert stats.kstest(drawn / 2**64, "uniform").pvalue > FALSE_FAILURE


def test_flips_do_not_depend_on_labeler_item_or_place(rows: Rows) -> None:
    flips = rows.flips()
    assert independent(flips, rows.unit % 16)
    assert independent(flips, rows.items[:, 0] >> np.uint64(60))
    assert independent(flips, np.arange(ROWS) * 16 // ROWS)
    assert independent(flips[1:], flips[:-1])
    assert independent(flips[LABELERS:], flips[:-LABELERS])  # the labeler's row before


def test_answers_follow_rows_through_orders_and_subsets(rows: Rows) -> None:
    labels = np.random.default_rng(0).integers(0, 3, ROWS).astype(np.uint8)
    released = rows.released(labels)
    for index in (
        np.random.default_rng(1).permutation(ROWS),
        np.arange(ROWS)[::-7],
        np.array([5]),
        np.array([], dtype=np.intp),
    ):
        again = randomize(
            labels[index],
            rows.coins,
            rows.coins.identify(rows.unit[index], rows.items[index]),
            rows.pair[index],
            rows.version[index],
            rows.threshold[index],
        )
        assert (again == released[index]).all()


@pytest.mark.parametrize(
    "changed", [{"threshold": THRESHOLD + 1}, {"version": 1}, {"pair": 1}, {"version": 1 << 31}]
)
def test_another_price_version_or_pair_is_an_independent_coin(
    changed: dict[str, int], rows: Rows
) -> None:
    assert independent(rows.flips(), rows.flips(**changed))


def test_nested_prices_do_not_share_a_coin(rows: Rows) -> None:
    """With one coin for two prices, who is not flipped at γ = ½ would not be flipped at .3."""
    at_half, cheaper = rows.flips(threshold=1 << 63), rows.flips()
    assert ((at_half == 0) & (cheaper == 1)).sum() > ROWS / 10
    assert independent(at_half, cheaper)


def test_every_purpose_has_coins_of_its_own(rows: Rows) -> None:
    drawn = [
        rows.coins.draw(purpose, rows.identity, rows.pair, rows.version, rows.threshold)
        for purpose in Purpose
    ]
    assert len(np.unique(np.concatenate(drawn))) == ROWS * len(Purpose)
    for index, one in enumerate(drawn):
        for other in drawn[:index]:
            assert independent(one >> np.uint64(61), other >> np.uint64(61))


def test_the_coins_of_two_labelers_on_one_item_are_independent() -> None:
    one, other = Rows(), Rows()
    other.identity = other.coins.identify((other.unit + 1) % LABELERS, other.items)
    assert independent(one.flips(), other.flips())
    assert not (one.identity == other.identity).all(axis=1).any()


def test_a_tie_becomes_a_fair_coin_that_is_independent_of_the_flip(rows: Rows) -> None:
    fair = rows.released(constant(LABEL_TIE), threshold=1)  # flips nobody
    assert fits(int(fair.sum()), ROWS, 0.5)
    released = rows.released(constant(LABEL_TIE))
    assert fits(int(released.sum()), ROWS, 0.5)
    assert independent(released ^ rows.flips(), rows.flips())


def test_the_coin_of_a_tie_is_permanent_across_prices(rows: Rows) -> None:
    """A tie's fair coin stands for its label: answers at several prices are about one label."""
    tie = rows.released(constant(LABEL_TIE), threshold=1)
    assert ((rows.released(constant(LABEL_TIE)) ^ rows.flips()) == tie).all()


@pytest.mark.parametrize("label", [0, 1, LABEL_TIE])
def test_ternary_keeps_a_label_or_takes_each_of_the_others_alike(label: int, rows: Rows) -> None:
    even = THRESHOLD & ~1
    released = rows.released(constant(label), randomize_ternary, threshold=even)
    counts = np.bincount(released, minlength=3)
    others = [counts[value] for value in (0, 1, 2) if value != label]
    assert fits(ROWS - int(counts[label]), ROWS, GAMMA)
    assert fits(int(others[0]), int(sum(others)), 0.5)


def test_a_ternary_step_does_not_depend_on_the_label(rows: Rows) -> None:
    labels = np.random.default_rng(0).integers(0, 3, ROWS).astype(np.uint8)
    steps = (rows.released(labels, randomize_ternary).astype(int) - labels) % 3
    assert (steps == rows.released(constant(0), randomize_ternary)).all()
    assert independent(steps, rows.flips())


def cbc_mac(key: bytes, message: bytes) -> bytes:
    """AES in CBC mode from a zero start, the last block: what `Prf` does for columns."""
    encryptor = Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor()
    return (encryptor.update(message) + encryptor.finalize())[-16:]


def test_a_coin_is_the_cbc_mac_of_salt_item_and_what_is_drawn() -> None:
    generate = repeatable_bytes("vectors")
    for number in range(50):
        salt, item = generate(16), generate(16)
        pair, version = number * 1301 % 2**16, number * 85_899_345 % 2**32
        threshold = int.from_bytes(generate(8), "big")
        purpose = list(Purpose)[number % len(Purpose)]
        coins = Coins(Prf(KEY, 3), from_bytes(salt))
        [coin] = coins.draw(
            purpose,
            coins.identify(np.zeros(1, np.intp), from_bytes(item)),
            np.array([pair], np.uint16),
            np.array([version], np.uint32),
            np.array([threshold], np.uint64),
        )
        drawn = bytes([1, purpose]) + pair.to_bytes(2, "big") + version.to_bytes(4, "big")
        mac = cbc_mac(KEY, salt + item + drawn + threshold.to_bytes(8, "big"))
        assert int(coin) == int.from_bytes(mac[:8], "big")


def test_row_keys_and_orders_are_draws_without_a_price() -> None:
    salt, item = bytes(range(16)), bytes(range(16, 32))
    coins = Coins(Prf(KEY, 3), from_bytes(salt))
    identity = coins.identify(np.zeros(1, np.intp), from_bytes(item))
    row_key: Blocks = coins.row_keys(identity, np.array([7], np.uint16))
    assert to_bytes(row_key) == cbc_mac(
        KEY, salt + item + bytes([1, Purpose.ROW_KEY, 0, 7]) + bytes(12)
    )
    [order] = coins.order(identity)
    assert (
        int(order).to_bytes(8, "big")
        == (cbc_mac(KEY, salt + item + bytes([1, Purpose.ORDER]) + bytes(14))[:8])
    )


def test_coins_never_change() -> None:
    """Frozen by an independent computation: another value would draw new coins for old labels."""
    assert derive_key(KEY, "coin").hex() == FROZEN_KEY
    coins = Coins(Prf(derive_key(KEY, "coin"), 3), from_bytes(bytes(16)))
    [coin] = coins.draw(
        Purpose.FLIP,
        coins.identify(np.zeros(1, np.intp), from_bytes(b"\xff" * 16)),
        np.array([3], np.uint16),
        np.array([2], np.uint32),
        np.array([1 << 62], np.uint64),
    )
    assert f"{int(coin):016x}" == FROZEN_COIN


FROZEN_KEY = "abc8a8b56a171739f5cbefd0b8dc4ef3ea4f67d92fa46e2a023ee6f4728397f0"
FROZEN_COIN = "cf559f8cb09352c9"


def test_a_prf_takes_messages_of_its_length_only() -> None:
    block = from_bytes(bytes(16))
    with pytest.raises(ValueError, match="expected 3 blocks, found 2"):
        Prf(KEY, 3)(block, block)
    with pytest.raises(ValueError, match="one-block"):
        Prf(KEY, 3).invert(block)
    wrap = Prf(KEY, 1)
    assert (wrap.invert(wrap(block)) == block).all()


def survey(rows: int = 20_000, labelers: int = 5_000) -> pa.Table:
    """Strict labels and ties, on either side, 4 of each labeler."""
    rng = np.random.default_rng(0)
    item = np.arange(rows)
    side = rng.integers(0, 2, rows)
    names = np.array(["first", "second"])
    label = rng.choice([0, 0.5, 1], rows, p=[0.3, 0.2, 0.5])
    table = {
        "prompt": item.astype(str),
        "response_a": names[side],
        "response_b": names[1 - side],
        "label": label,
        "labeler_id": (item % labelers).astype(str),
    }
    return pa.table(table)


def flips_of(table: pa.Table, project: Path) -> pl.DataFrame:
    """The rows of a table with what was released of them; ties do not count."""
    release = lg.privatize(table, epsilon=4, delta=1e-6, project=lg.init(project))
    rows = pl.from_arrow(table)
    assert isinstance(rows, pl.DataFrame)
    joined = rows.with_row_index().join(lg.load(release), on="prompt")
    assert len(joined) == len(rows)
    preferred = pl.when(pl.col("label") == 1).then("response_a").otherwise("response_b")
    return joined.filter(pl.col("label") != 0.5).with_columns(flipped=pl.col("chosen") != preferred)


@pytest.fixture
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelguard.keys.random_bytes", repeatable_bytes())


@pytest.mark.usefixtures("fixed_keys")
def test_released_labels_are_flipped_as_the_accountant_says(tmp_path: Path) -> None:
    frame = flips_of(survey(), tmp_path)
    gamma = 1 / (1 + np.exp(accounting.calibrate(4, 1e-6, 8)))
    assert frame["flip_probability"].unique().to_list() == pytest.approx([gamma])
    assert fits(int(frame["flipped"].sum()), len(frame), gamma)


@pytest.mark.usefixtures("fixed_keys")
def test_flips_do_not_depend_on_label_side_or_row_order(tmp_path: Path) -> None:
    frame = flips_of(survey(), tmp_path)
    flipped = frame["flipped"].to_numpy()
    assert independent(flipped, frame["label"].to_numpy())
    assert independent(flipped, frame["response_a"].to_numpy())
    assert independent(flipped, frame["index"].to_numpy() // 4_000)


@pytest.mark.usefixtures("fixed_keys")
def test_a_release_whose_threshold_is_ten_percent_off_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = pricing.prices
    monkeypatch.setattr(
        pricing,
        "prices",
        lambda *asked: {k: int(t * 1.1) for k, t in exact(*asked).items()},
    )
    frame = flips_of(survey(), tmp_path)
    gamma = 1 / (1 + np.exp(accounting.calibrate(4, 1e-6, 8)))
    assert not fits(int(frame["flipped"].sum()), len(frame), gamma)


@pytest.mark.usefixtures("fixed_keys")
def test_released_ties_show_each_side_alike(tmp_path: Path) -> None:
    table = survey()
    ties = table.set_column(3, "label", pa.array(np.full(len(table), 0.5)))
    release = lg.privatize(ties, epsilon=4, delta=1e-6, project=lg.init(tmp_path))
    frame = lg.load(release)
    assert len(frame) == len(ties)
    assert fits(int((frame["chosen"] == "first").sum()), len(frame), 0.5)
