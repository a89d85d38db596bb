"""Large audits: how close they come to the claim, and whether they see noise 10% too small.

    python bench/audit.py                   # --quick for a tenth of the runs

Each audit runs in a process of its own. "10% too small" means, for randomized response, coins whose
ε0 is 10% too large, and for the statistic noise with nine tenths of its standard deviation. One
release of one world is one run; coins and noise are fresh in each.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from _measure import measure, report
from numpy.typing import NDArray

from labelguard.accounting import randomized_response as rr
from labelguard.analysis.audit import audit_randomized_response, audit_statistic
from labelguard.analysis.audit_bounds import AuditResult
from labelguard.budget import pricing
from labelguard.budget.event_kind import Price
from labelguard.budget.policy import Policy
from labelguard.mechanisms import statistic
from labelguard.mechanisms.statistic import Grid

EPSILONS = (1.0, 3.0)
DELTA = 1e-5
LABELS = 8
RUNS = {"rr": 1_000_000, "statistic": 250_000}
WITHIN = 0.15
TOO_SMALL = 0.9

noisy, prices = statistic.add_noise, pricing.compute_prices


def audit(mechanism: str, epsilon: float, runs: int) -> dict[str, Any]:
    """The audit of the code as it is, three whole releases of each world included."""
    return asdict(_audit(mechanism, epsilon, runs, pipeline_runs=3))


def audit_of_a_mistake(mechanism: str, epsilon: float, runs: int) -> dict[str, Any]:
    """The audit of code with noise 10% too small."""
    pricing.compute_prices = _prices
    statistic.add_noise = _noisy
    return asdict(_audit(mechanism, epsilon, runs, pipeline_runs=0))


def _audit(mechanism: str, epsilon: float, runs: int, pipeline_runs: int) -> AuditResult:
    if mechanism == "rr":
        return audit_randomized_response(
            epsilon, DELTA, labels=LABELS, runs=runs, pipeline_runs=pipeline_runs
        )
    # One component: noise is drawn where the canary moves the sum, and nowhere else.
    return audit_statistic(epsilon, DELTA, runs=runs, components=1, pipeline_runs=pipeline_runs)


def _prices(policy: Policy, event: str) -> dict[int, Price]:
    found = prices(policy, event)
    if event == "statistic":
        return found
    return {
        k: {"threshold": rr.threshold(rr.epsilon0_of(price["threshold"]) / TOO_SMALL)}
        for k, price in found.items()
    }


def _noisy(total: NDArray[np.int64], grid: Grid, nonce: bytes) -> NDArray[np.int64]:
    return noisy(total, replace(grid, scale=round(TOO_SMALL * grid.scale)), nonce)


def main() -> None:
    """Both mechanisms at every ε, right and wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    quick = parser.parse_args().quick
    rows: list[list[Any]] = []
    for mechanism, most in RUNS.items():
        runs = most // 10 if quick else most
        for epsilon in EPSILONS:
            for step, name in ((audit, "as it is"), (audit_of_a_mistake, "10% too little noise")):
                done = measure(step, mechanism, epsilon, runs)
                rows.append(_row(mechanism, epsilon, name, done))
    columns = ["mechanism", "ε", "code", "runs", "lower bound", "verdict", "wanted", "seconds"]
    report("audit", columns, rows)


def _row(mechanism: str, epsilon: float, name: str, done: dict[str, Any]) -> list[Any]:
    result = done["result"]
    least = (1 - WITHIN) * epsilon
    wanted = f"{least:g} to {epsilon:g}" if name == "as it is" else f"above {epsilon:g}"
    # Without the checks of fit, whose bound is infinite: they tell nothing of how close one comes.
    bounds = (check["lower_bound"] for check in result["checks"])
    bound = round(max(bound for bound in bounds if bound is not None), 4)
    return [
        mechanism,
        epsilon,
        name,
        result["runs"],
        bound,
        result["verdict"],
        wanted,
        done["seconds"],
    ]


if __name__ == "__main__":
    main()
