"""Language models of DP-SGD on planted pairs, made in a moment."""

from pathlib import Path

import numpy as np
from labelguard_trainer.gradient.language_runs import PreparedLanguage
from labelguard_trainer.gradient.records import Records
from support import tiny_models

from labelguard.learning.learners import LearnerOptions

PAIRS, RECORDS, LABELERS, LIMIT = 16, 40, 8, 4
LORA = "r=4,alpha=8"


def pairs(*, swapped=False):
    """Planted pairs whose first side is preferred, or their second if `swapped`."""
    names = ["prompt", "second", "first"] if swapped else ["prompt", "first", "second"]
    columns = ["prompt", "chosen", "rejected"]
    return tiny_models.planted(PAIRS, seed=4).select(columns).rename_columns(names)


def records(limit=LIMIT, weighting="mean"):
    """Of `LABELERS` labelers, who have from none to many; the last has none."""
    draw = np.random.default_rng(2)
    units = np.sort(draw.integers(0, LABELERS - 1, RECORDS))
    return Records(draw.integers(0, PAIRS, RECORDS), units, LABELERS, limit, weighting)


def labels():
    """Of all records, ties among them."""
    return np.random.default_rng(3).choice([0.0, 0.5, 1.0], RECORDS)


def problem(kind, base, lora=LORA, of=None, *, swapped=False, **settings):
    """On a CPU; `settings` are those of a training configuration."""
    config = Path(base).with_name("config.yaml")
    usual = {
        "max_length": 48,
        "per_device_train_batch_size": 6,
        "learning_rate": 0.01,
        "use_cpu": "true",
    }
    given = {**usual, **settings}
    config.write_text("\n".join(f"{name}: {value}" for name, value in given.items()))
    options = LearnerOptions(base, lora, str(config))
    prepared = PreparedLanguage.of(kind, pairs(swapped=swapped), options)
    return prepared.open(of or records())


def moved(found, steps=2):
    """The problem a few random steps on, so that no matrix is zero."""
    for step in range(steps):
        found.step(found.add_noise(0.0, 1.0, bytes([step]) * 32))
    return found
