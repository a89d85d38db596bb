"""Components of a joint price by their ε0 or noise multiplier, and strategies that draw them."""

from hypothesis import strategies as st

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.components import Gaussians, RandomizedBlocks


def coins(epsilon0, count):
    return RandomizedBlocks(rr.threshold(epsilon0), count)


def gaussians(noise_multiplier, count):
    return Gaussians(noise_multiplier, count)


epsilon0s = st.floats(1e-3, 3)
counts = st.integers(1, 40)
deltas = st.floats(1e-10, 0.2)
components = st.one_of(
    st.builds(coins, epsilon0s, counts), st.builds(gaussians, st.floats(0.3, 100), counts)
)
products = st.lists(components, min_size=1, max_size=3)
