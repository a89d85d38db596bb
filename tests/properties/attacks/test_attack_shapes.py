"""Who sees coins first and then picks the noise of a statistic breaks the joint price; here they
cannot: shape, scale and fewest components are fixed with the policy.

Coins and a statistic cost (ε, δ) together for each of several noises. But δ(ε) of the adversary who
picks one by the loss ℓ that the coins left is Σ_ℓ P[ℓ] · max over noises of δ_noise(ε − ℓ), up to
twice as much. All numbers here are computed, none is sampled.
"""

from functools import partial

import numpy as np
import pytest
from support.preferences import STATISTIC, opinions, pairs, public
from support.releases import make_release

from labelguard.accounting import _numbers, ball, gaussian, joint
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.components import Balls, Gaussians, RandomizedBlocks
from labelguard.mechanisms.noise import Noise
from labelguard.project import policies

EPSILON, DELTA = 1.0, 1e-5
COINS = RandomizedBlocks(rr.threshold(rr.calibrate(0.3, DELTA, 20)), 20)


def least(make):
    """The smallest noise that costs (ε, δ) together with the coins, to 2^-30."""

    def private(whole):
        return joint.delta([COINS, make(whole / 2**30)], EPSILON) <= DELTA

    return make(_numbers.smallest_whole(private, 2**27, 2**35) / 2**30)


def of_components(components):
    return least(partial(Balls, components=components))


def chosen_by_the_coins(noises):
    """δ(ε) of the adversary who takes the worst of these, given what the coins told."""
    losses, probabilities = joint._coin_loss_distribution(COINS)
    worst = np.max([deltas(EPSILON - losses) for deltas in noises], axis=0)
    return float(probabilities @ worst)


def deltas_of(noise):
    if isinstance(noise, Balls):
        return partial(ball.deltas, scale=noise.scale, components=noise.components)
    return partial(gaussian.deltas, distance=joint.compute_noise_distance([noise]))


def test_control_a_shape_chosen_after_the_coins_breaks_the_price():
    noises = [of_components(2), least(lambda sigma: Gaussians(sigma, 1))]
    for noise in noises:
        assert joint.delta([COINS, noise], EPSILON) <= DELTA
        assert chosen_by_the_coins([deltas_of(noise)]) == pytest.approx(DELTA, rel=1e-4)
    assert chosen_by_the_coins([deltas_of(noise) for noise in noises]) > 1.8 * DELTA


def test_control_a_number_of_components_chosen_after_the_coins_breaks_the_price():
    noises = [of_components(components) for components in (2, 8, 32)]
    assert chosen_by_the_coins([deltas_of(noise) for noise in noises]) > 1.8 * DELTA


@pytest.mark.quick("2")
@pytest.mark.parametrize("fewest", [2, 8])
def test_components_chosen_after_the_coins_at_the_policys_scale_cost_no_more(fewest):
    fixed = of_components(fewest)
    drawn = [max(components, fewest) for components in (1, 2, 3, 5, 8, 9, 32, 200)]
    noises = [deltas_of(Balls(fixed.scale, components)) for components in dict.fromkeys(drawn)]
    assert len(noises) > 2
    assert chosen_by_the_coins(noises) <= DELTA
    # Fewer components in as few dimensions would cost more: the surplus is what is dropped.
    fewer = deltas_of(Balls(fixed.scale, fewest - 1))
    assert chosen_by_the_coins([fewer, *noises]) > DELTA


@pytest.mark.quick("1-2")
@pytest.mark.parametrize(("components", "fewest"), [(1, 2), (2, 1)])
def test_a_release_after_coins_has_the_noise_of_the_policy_whatever_its_components(
    components, fewest, project
):
    asked = public()
    table = pairs(asked, opinions(len(asked), 1))
    policies.new(
        "study",
        epsilon=EPSILON,
        delta=DELTA,
        allow=["rr:uses=20", f"statistic:releases=1,ball={fewest}"],
        project=project,
    )
    policies.activate("study", project)
    [price] = [
        one for one in policies.show("study", project).quote.events if one.event == "statistic"
    ]
    assert (price.noise, price.components) == ("ball", fewest) and price.scale
    make_release(table, mechanism="rr", project=project, accept_delta=True)
    options = STATISTIC | {"features": "length+text", "components": components}
    release = make_release(table, project=project, accept_delta=True, **options)
    said = release.card["statistic"]
    assert said["components"] == components
    assert (said["noise_kind"], said["noise_least_components"]) == ("ball", fewest)
    assert said["noise_scale"] == pytest.approx(price.scale)
    expected = Noise("ball", price.scale, fewest).deviation(components) * said["sensitivity"]
    assert said["noise"] == pytest.approx(expected, rel=1e-6)
