"""How many labels of a labeler a step looks at: estimate and double, on simulated labels.

Source: user-level-dp-finetuning, algorithm 3. There the gradients are of real labels, which would
be a query of its own that nobody accounts for; here labels are fair coins.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["doubled"]


def doubled(norm_of: Callable[[int], float], cohort: float, most: int) -> int:
    """G, a power of 2 and at most `most`: doubled as long as that lowers the noise by more than
    doubling the cohort would.

    `norm_of(G)` is the median norm of a labeler's mean gradient over G labels, to which the noise
    is scaled; `cohort` is by what the noise on a mean changes if cohorts are doubled, σ(2q)/2σ(q),
    at most 1.
    """
    limit, norm = 1, norm_of(1)
    while 2 * limit <= most:
        further = norm_of(2 * limit)
        if further >= cohort * norm:
            break
        limit, norm = 2 * limit, further
    return limit
