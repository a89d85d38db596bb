"""The joint price against adversaries who choose what comes next from what they have seen.

A worst-case labeler has all labels 1 in one data set and all 0 in the other; a statistic moves by
its whole sensitivity. Transcripts are drawn under the first data set, L is the log-ratio of their
probabilities, and δ(ε) is estimated without bias by the mean of (1 − e^(ε−L))₊, which is
P[L > ε] − e^ε·Q[L > ε] with less variance.

A check fails falsely if a mean of a million independent values in [0, 1] exceeds its expectation by
5 standard errors: 3e-7 each (normal; at least 1,000 transcripts contribute to each mean), below
2e-5 for all checks here together. Seeds are fixed, so that a pass stays a pass.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from labelguard.accounting import joint
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.components import Gaussians, RandomizedBlocks
from labelguard.accounting.joint import Share

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

TRANSCRIPTS = 1_000_000
STANDARD_ERRORS = 5.0
COINS, STATISTICS = 9, 3
EPSILON, DELTA = 2.0, 5e-3


@dataclass(frozen=True)
class Estimate:
    mean: float
    standard_error: float

    def exceeds(self, bound):
        return self.mean > bound + STANDARD_ERRORS * self.standard_error

    def falls_short_of(self, bound):
        return self.mean < bound - STANDARD_ERRORS * self.standard_error


def estimate(contributions):
    error = float(contributions.std()) / math.sqrt(contributions.size)
    return Estimate(float(contributions.mean()), error)


def excess(losses, epsilon):
    return -np.expm1(np.minimum(epsilon - losses, 0.0))


# --- one policy ----------------------------------------------------------------------------------


@dataclass
class Seen:
    """What an adversary knows before the next event, one entry a transcript."""

    loss: Floats
    coins_left: NDArray[np.int64]
    statistics_left: NDArray[np.int64]
    step: int
    random: np.random.Generator


# Whether a statistic comes next rather than a coin; where none is left, the other kind does.
Chooses = Callable[[Seen], Flags]


def never_stops(seen):
    return np.zeros(seen.loss.shape, dtype=bool)


def stops_when_ahead(seen):
    return seen.loss > EPSILON + 0.5


def stops_when_behind(seen):
    return seen.loss < -1.0


ORDERS: dict[str, Chooses] = {
    "coins first": lambda seen: seen.loss > math.inf,
    "statistics first": lambda seen: seen.loss > -math.inf,
    "alternating": lambda seen: np.full(seen.loss.shape, seen.step % 2 == 1),
    "random": lambda seen: seen.random.random(seen.loss.size) < 0.3,
    "loss-greedy": lambda seen: seen.loss + seen.coins_left * 0.1 < EPSILON,
    "switches when ahead": lambda seen: seen.loss > 0.6,
    "gambles when behind": lambda seen: seen.loss < 0.0,
}


def losses_of(chooses, stops, policy, *seed):
    """L of every transcript: answers to labels 1, statistics 1 + noise, weighed against 0."""
    coins, noise = policy
    threshold, noise_multiplier = coins.threshold, noise.noise_multiplier
    random = np.random.default_rng(seed)
    flip = threshold / 2**64
    weight = math.log((1 - flip) / flip)
    size = TRANSCRIPTS
    seen = Seen(np.zeros(size), np.full(size, COINS), np.full(size, STATISTICS), 0, random)
    running = np.ones(size, dtype=bool)
    for step in range(COINS + STATISTICS):
        seen.step = step
        running &= ~stops(seen)
        statistic = (chooses(seen) & (seen.statistics_left > 0)) | (seen.coins_left == 0)
        answer = random.integers(0, 2**64, size, dtype=np.uint64) >= np.uint64(threshold)
        released = 1.0 + noise_multiplier * random.standard_normal(size)
        gained = np.where(
            statistic, (released - 0.5) / noise_multiplier**2, np.where(answer, weight, -weight)
        )
        seen.loss += np.where(running, gained, 0.0)
        seen.statistics_left -= running & statistic
        seen.coins_left -= running & ~statistic
    return seen.loss


@pytest.fixture(scope="module")
def policy():
    shares = [Share(RandomizedBlocks.calibrate, COINS), Share(Gaussians.calibrate, STATISTICS)]
    return joint.calibrate(EPSILON, DELTA, shares)


@pytest.mark.quick("coins first", "loss-greedy")
@pytest.mark.parametrize("order", ORDERS)
def test_every_adaptive_order_of_all_events_costs_the_joint_price(policy, order):
    losses = losses_of(ORDERS[order], never_stops, policy, 1, list(ORDERS).index(order))
    for epsilon in (EPSILON, EPSILON / 2):
        found, price = estimate(excess(losses, epsilon)), joint.delta(policy, epsilon)
        assert not found.exceeds(price)
        assert not found.falls_short_of(price)  # nothing is wasted either


@pytest.mark.quick("loss-greedy-stops_when_ahead")
@pytest.mark.parametrize("stops", [stops_when_ahead, stops_when_behind])
@pytest.mark.parametrize("order", ["loss-greedy", "switches when ahead"])
def test_an_adversary_who_stops_early_gains_nothing(policy, order, stops):
    losses = losses_of(ORDERS[order], stops, policy, 2, list(ORDERS).index(order))
    assert not estimate(excess(losses, EPSILON)).exceeds(DELTA)


@pytest.mark.quick("coins-0.3", "statistics-0.3")
@pytest.mark.parametrize("missing", [0.1, 0.3])
@pytest.mark.parametrize("where", ["coins", "statistics"])
def test_control_noise_that_is_too_small_is_caught(policy, where, missing):
    coins, noise = policy
    if where == "coins":
        coins = RandomizedBlocks(rr.threshold(coins.epsilon0 / (1 - missing)), COINS)
    else:
        noise = Gaussians(noise.noise_multiplier * (1 - missing), STATISTICS)
    small = (coins, noise)
    losses = losses_of(ORDERS["alternating"], never_stops, small, 3, round(10 * missing))
    assert estimate(excess(losses, EPSILON)).exceeds(DELTA)


# --- two policies --------------------------------------------------------------------------------

# Nested caps, four times as large each: their losses are nearly independent, which is the best
# case for someone who picks the moment at which the first policy ends.
BLOCKS = np.array([1, 4, 16, 64, 256, 1024])
COIN, NOISE = RandomizedBlocks(rr.threshold(0.04), 4), Gaussians(8.0, 1)  # of one block
SECOND_DELTA = 2e-3


def cap(blocks):
    return [
        RandomizedBlocks(COIN.threshold, COIN.count * blocks),
        Gaussians(NOISE.noise_multiplier, NOISE.count * blocks),
    ]


def prices_of_caps(delta):
    return np.array([joint.epsilon(cap(int(blocks)), delta) for blocks in BLOCKS])


def added_loss(blocks, random):
    """The loss that `blocks` more blocks add, for every transcript."""
    coins, noise = COIN.count * blocks, NOISE.count * blocks
    flips = random.binomial(coins, COIN.threshold / 2**64, TRANSCRIPTS)
    distance = math.sqrt(noise) / NOISE.noise_multiplier
    moved = distance * (distance / 2 + random.standard_normal(TRANSCRIPTS))
    return (coins - 2 * flips) * COIN.epsilon0 + moved


def closed_when_ahead(prices, caution, random):
    """Loss of the first policy and the cap at which it was closed.

    Closed at the first cap whose price the loss exceeds by `caution` standard deviations of it,
    else at the last one.
    """
    loss, closed_at = np.zeros(TRANSCRIPTS), np.full(TRANSCRIPTS, BLOCKS.size - 1)
    running = np.ones(TRANSCRIPTS, dtype=bool)
    for place, blocks in enumerate(np.diff(BLOCKS, prepend=0).tolist()):
        loss += np.where(running, added_loss(blocks, random), 0.0)
        spread = joint.compute_noise_distance(
            [Gaussians(NOISE.noise_multiplier, int(BLOCKS[place]))]
        )
        closing = running & (loss > prices[place] + caution * spread)
        closed_at[closing] = place
        running &= ~closing
    return loss, closed_at


def after_the_worst_second_policy(loss, second_epsilon, second_delta, epsilon):
    """Contributions to δ when the worst (ε, δ)-private mechanism follows, its outcome averaged.

    With probability δ it tells all; else it is a coin at ε (Kairouz, Oh and Viswanath 2015).
    """
    truth = 1 / (1 + np.exp(-second_epsilon))
    after_coin = truth * excess(loss + second_epsilon, epsilon)
    after_coin += (1 - truth) * excess(loss - second_epsilon, epsilon)
    return second_delta + (1 - second_delta) * after_coin


@pytest.mark.quick("0.5")
@pytest.mark.parametrize("caution", [0.1, 0.5])
def test_control_crediting_what_was_not_used_at_a_moment_of_ones_choice_exceeds_delta(caution):
    prices = prices_of_caps(DELTA)  # what was used, priced afterwards as if nothing else could be
    total = prices[-1] + 2.0
    loss, closed_at = closed_when_ahead(prices, caution, np.random.default_rng([4]))
    left = total - prices[closed_at]
    found = estimate(after_the_worst_second_policy(loss, left, 0.0, total))
    assert found.exceeds(1.5 * DELTA)


@pytest.mark.quick("0.1")
@pytest.mark.parametrize("caution", [0.0, 0.1, 0.5])
def test_the_full_price_of_a_policy_is_never_exceeded_whenever_it_is_closed(caution):
    prices = prices_of_caps(DELTA)
    total = prices[-1] + 2.0
    loss, _ = closed_when_ahead(prices, caution, np.random.default_rng([5]))
    left = np.full(TRANSCRIPTS, 2.0)  # whatever was not used is not credited
    found = estimate(after_the_worst_second_policy(loss, left, SECOND_DELTA, total))
    assert not found.exceeds(DELTA + SECOND_DELTA)
    assert found.mean > SECOND_DELTA + DELTA / 4  # the adversary is a strong one


def test_control_the_product_of_two_policies_does_not_cover_a_second_one_chosen_by_the_first():
    """Of two second policies at one price (ε₂, δ₂), the one that hurts more, given the loss.

    The joint price with either is sound for that one. Choosing between them by the loss exceeds
    both, but not (ε₁ + ε₂, δ₁ + δ₂).
    """
    second_epsilon, second_delta = 1.0, 0.05
    first, first_delta = [RandomizedBlocks(rr.threshold(0.3), 10)], 1e-3
    total = joint.epsilon(first, first_delta) + second_epsilon
    steep = joint.calibrate(second_epsilon, second_delta, [Share(RandomizedBlocks.calibrate, 1)])
    flat = joint.calibrate(second_epsilon, second_delta, [Share(Gaussians.calibrate, 1)])

    def at(epsilon):
        return max(joint.delta([*first, *second], epsilon) for second in (steep, flat))

    for epsilon in (total / 3, total / 2, total):
        chosen = 0.0
        losses, probabilities = joint._coin_loss_distribution(first[0])
        for loss, probability in zip(losses.tolist(), probabilities.tolist(), strict=True):
            chosen += probability * max(
                signed_delta(second, epsilon - loss) for second in (steep, flat)
            )
        assert chosen > at(epsilon) * 1.02
    assert 1.3 * at(total) < chosen < first_delta + second_delta


def signed_delta(components, epsilon):
    """δ for ε of either sign: 1 − e^ε + e^ε·δ(−ε) below 0, for components that look alike from
    both data sets.
    """
    if epsilon >= 0:
        return joint.delta(components, epsilon)
    return -math.expm1(epsilon) + math.exp(epsilon) * joint.delta(components, -epsilon)
