"""Flips of blocks by enumeration and by numpy, apart from how a release draws them."""

from itertools import product

import numpy as np
from scipy.special import comb

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import find_block
from labelguard.budget import pricing


def coin(epsilon):
    """The threshold of one coin at (ε, 0)."""
    return rr.threshold(rr.calibrate(epsilon, 0.0, 1))


def every_answer(threshold, labels):
    """Every s of a block of two letters, −1 for a flip, (2^labels, labels), and its probability."""
    vectors = np.array(list(product((1, -1), repeat=labels)))
    weight = np.where(
        (vectors < 0).sum(axis=1) <= most_changes(threshold, labels), odds(threshold), 1
    )
    return vectors, weight / weight.sum()


def draw(threshold, labels, blocks, rng):
    """s of so many blocks, (blocks, labels)."""
    flips = np.arange(labels + 1)
    weight = comb(labels, flips) * np.where(
        flips <= most_changes(threshold, labels), odds(threshold), 1
    )
    drawn = rng.choice(labels + 1, blocks, p=weight / weight.sum())
    place = rng.random((blocks, labels)).argsort(axis=1)
    return np.where(place < drawn[:, None], -1, 1)


def on_card(threshold, *labels):
    """Blocks of these sizes as a card has them."""
    laws = [find_block(threshold, m) for m in labels]
    one, two = "flip_probability", "second_moment"
    return [{one: m.flip_probability, "labels": m.labels, two: m.mean_sign_product} for m in laws]


def scale_thresholds(patch, factor):
    """Coins flip so many times as often as they are paid for, as a mistake would have it."""
    exact = pricing.compute_prices

    def scaled(*asked):
        prices = exact(*asked).items()
        return {k: {"threshold": int(price["threshold"] * factor)} for k, price in prices}

    patch.setattr(pricing, "compute_prices", scaled)


def most_changes(threshold, labels):
    """How many flips are likely."""
    return find_block(threshold, labels).likely_change_limit


def odds(threshold):
    """e^ε of a coin."""
    return (rr.COIN_RANGE - threshold) / threshold
