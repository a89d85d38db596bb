"""Runs of gradient methods as privacy loss distributions of dp-accounting, and by quadrature."""

import math

import numpy as np
from scipy.stats import binom, norm

INTERVAL = 2.0**-11


def subsampled_pld(noise_multiplier, sampling_probability, steps, interval=INTERVAL):
    """User-wise DP-SGD under REPLACE_ONE, pessimistic."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation

    return pld.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_probability,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
        value_discretization_interval=interval,
    ).self_compose(steps)


def accountant(event, *, replaced):
    """dp-accounting's PLD accountant with one event."""
    from dp_accounting.pld import pld_privacy_accountant
    from dp_accounting.privacy_accountant import NeighboringRelation

    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.REPLACE_SPECIAL
    return pld_privacy_accountant.PLDAccountant(relation, INTERVAL).compose(event)


def hockey_stick(upper, lower, epsilon, reach):
    """∫ (upper − e^ε·lower)₊ over [−reach, reach], by the trapezoidal rule, to 1e-8."""
    x = np.linspace(-reach, reach, 2**17)
    return float(np.trapezoid(np.maximum(0.0, upper(x) - math.exp(epsilon) * lower(x)), x))


def one_step_of_users(noise_multiplier, sampling_probability, epsilon):
    """δ of one step of user-wise DP-SGD under `replace_labels`."""

    def density(x, to):
        stayed, moved = norm.pdf(x, 0, noise_multiplier), norm.pdf(x, to, noise_multiplier)
        return np.asarray((1 - sampling_probability) * stayed + sampling_probability * moved)

    return hockey_stick(
        lambda x: density(x, 1), lambda x: density(x, -1), epsilon, 1 + 12 * noise_multiplier
    )


def one_step_of_records(noise_multiplier, sampling_probability, records, epsilon):
    """δ of one step of ELS under `zero_out`, the larger of the two orders."""
    counts = np.arange(records + 1)
    weights = binom.pmf(counts, records, sampling_probability)

    def there(x):
        return np.asarray(norm.pdf(x[:, np.newaxis], counts, noise_multiplier) @ weights)

    def gone(x):
        return np.asarray(norm.pdf(x, 0, noise_multiplier))

    reach = records + 12 * noise_multiplier
    return max(hockey_stick(there, gone, epsilon, reach), hockey_stick(gone, there, epsilon, reach))
