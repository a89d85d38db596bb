"""Releases and a base model for tests of `labelguard train`, and what a model's weights are."""

import shutil
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from support import tiny_models
from support.releases import make_release

import labelguard as lg

MECHANISMS: dict[str, dict[str, Any]] = {
    "rr": {"mechanism": "rr"},
    "statistic": {"mechanism": "statistic", "features": "length"},
    "soft": {"mechanism": "props", "features": "length", "combine": "soft"},
    "hard": {"mechanism": "props", "features": "length", "combine": "hard"},
}
CONFIG = """\
max_length: 64
max_steps: 20
per_device_train_batch_size: 8
learning_rate: 1.0e-3
"""
QUICK = "max_length: 64\nmax_steps: 4\nper_device_train_batch_size: 8\n"


def labels(pairs=200, labelers=50):
    """Planted pairs as labelers gave them."""
    who = [f"w{row % labelers}" for row in range(pairs)]
    return tiny_models.planted(pairs).append_column("labeler_id", pa.array(who))


def workshop(directory):
    """The directory, with `base` (a model), labels, probes, configs, and a release by each of
    `MECHANISMS` as a copy without its project.
    """
    tiny_models.saved(directory / "base")
    pq.write_table(labels(), directory / "labels.parquet")
    pq.write_table(tiny_models.planted(40, seed=9), directory / "probes.parquet")
    (directory / "config.yaml").write_text(CONFIG)
    (directory / "quick.yaml").write_text(QUICK)
    for name, options in MECHANISMS.items():
        project = lg.init(directory / "project", max_epsilon=20)
        release = make_release(labels(), project=project, epsilon=20.0, delta=1e-5, **options)
        shutil.copytree(release.path, directory / name)
        shutil.rmtree(directory / "project")
    return directory


def weights(directory):
    """Every tensor of a model, or of an adapter."""
    [file] = directory.glob("*.safetensors")
    return load_file(file)


def same(one, other):
    """Whether two models have the same weights, bit by bit."""
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


# What Python runs in place of the command: it dies while it saves a checkpoint.
KILLED = """
import os, signal
from labelguard.cli.main import main
from labelguard_trainer.training import reporting
complete = reporting.mark_complete

def killed(checkpoint):
    if checkpoint.name == "checkpoint-{checkpoint}":
        (checkpoint / "optimizer.pt").write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)
    complete(checkpoint)

reporting.mark_complete = killed
main()
"""
