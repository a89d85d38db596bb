"""What a labeler's labels tell, and flips as benchmarks draw them."""

import numpy as np

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import find_block

SCRIPT = "utility.joint"
# t, γ and m(1−2γ)² of m labels at ε = 1, 3 and 8, from independent code.
KNOWN = {
    "1": ("0, .2689, .214", "0, .0474, .819", "0, .0003, .999"),
    "2": ("0, .3498, .181", "0, .0866, 1.367", "0, .0007, 1.995"),
    "3": ("1, .3845, .160", "0, .1477, 1.490", "0, .0013, 2.984"),
    "8": ("3, .4277, .167", "2, .2917, 1.388", "0, .0396, 6.784"),
    "16": ("7, .4501, .159", "5, .3545, 1.355", "2, .1698, 6.978"),
    "50": ("23, .4718, .159", "20, .4183, 1.335", "15, .3076, 7.407"),
    "200": ("97, .4859, .158", "91, .4590, 1.346", "80, .4032, 7.491"),
}


def test_what_labels_tell_is_what_independent_code_says(bench):
    heading, *rows = bench.information_table((1.0, 3.0, 8.0), 1e-5)
    assert len(heading) == 4
    found = {labels: tuple(cell.partition(" (")[0] for cell in cells) for labels, *cells in rows}
    assert found == KNOWN
    assert dict(zip(found, rows, strict=True))["50"][2].endswith("(.136)")


def test_flips_are_drawn_by_the_law_of_their_blocks(bench):
    """20,000 blocks of three and of one: moments within five standard errors."""
    threshold = rr.threshold(rr.calibrate(1.0, 1e-5, 1))
    unit = np.concatenate([np.repeat(np.arange(20_000), 3), np.arange(20_000, 40_000)])
    drawn = bench.draw_blocks(unit, threshold, np.random.default_rng(0))
    kept = 1 - 2 * drawn.flipped[:60_000].reshape(-1, 3).astype(float)
    law = find_block(threshold, 3)
    assert np.abs(kept.mean(axis=0) - law.mean_sign).max() < 5 / np.sqrt(20_000)
    products = kept[:, [0, 0, 1]] * kept[:, [1, 2, 2]]
    assert np.abs(products.mean(axis=0) - law.mean_sign_product).max() < 5 / np.sqrt(20_000)
    assert set(drawn.flip_probability[:60_000]) == {law.flip_probability}
    alone = find_block(threshold, 1).flip_probability
    assert abs(drawn.flipped[60_000:].mean() - alone) < 5 * 0.5 / np.sqrt(20_000)


def test_a_bound_keeps_so_many_rows_of_each_labeler(bench):
    unit = np.array([5, 5, 2, 5, 2, 5])
    rows = bench.bound(unit, 2, np.random.default_rng(0))
    assert np.bincount(unit[rows]).tolist() == [0, 0, 2, 0, 0, 2]
