"""Labels of judges who compare systems, whose strengths are known."""

from typing import Any

import numpy as np
import polars as pl

# Log-odds; beta and gamma are nearly equal.
STRENGTHS = {"alpha": 1.5, "beta": 0.5, "gamma": 0.4, "delta": -0.9, "epsilon": -1.5}

# A statistic release of an `arena`.
SOURCES: dict[str, Any] = {
    "mechanism": "statistic",
    "epsilon": 3.0,
    "delta": 1e-5,
    "features": "source:model",
    "public_columns": ["model", "language"],
    "components": 4,
    "whitening": 0.5,
    "floor": 1e-3,
    "clip_quantile": 0.5,
    "ridge": 3.0,
}


def arena(judges=60, labels=40, seed=0, first=0):
    """Each judge compares pairs of systems on some of 40 questions in two languages."""
    rng = np.random.default_rng(seed)
    names = np.array(list(STRENGTHS))
    own = np.array(list(STRENGTHS.values())) + 0.5 * rng.normal(size=(judges, len(names)))
    unit = np.repeat(np.arange(judges), labels)
    one = rng.integers(len(names), size=len(unit))
    other = (one + rng.integers(1, len(names), size=len(unit))) % len(names)
    wins = rng.random(len(unit)) < 1 / (1 + np.exp(own[unit, other] - own[unit, one]))
    question = rng.integers(40, size=len(unit))
    pairs = list(zip(question.tolist(), names[one].tolist(), names[other].tolist(), strict=True))
    return pl.DataFrame(
        {
            "labeler_id": [f"judge-{first + u}" for u in unit.tolist()],
            "prompt": [f"question {q}" for q, _, _ in pairs],
            "response_a": [f"what {a} says to {q}" + "!" * len(a) for q, a, _ in pairs],
            "response_b": [f"what {b} says to {q}" + "!" * len(b) for q, _, b in pairs],
            "model_a": names[one],
            "model_b": names[other],
            "language": ["de" if q % 2 else "en" for q, _, _ in pairs],
            "label": wins.astype(float),
        }
    )
