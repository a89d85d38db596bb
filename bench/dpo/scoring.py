"""Pairs as tokens with the reference's log-probabilities, which all runs of a base model share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from labelguard_trainer import DPOConfig, DPOTrainer
from numpy.typing import NDArray

from dpo.grammar import Pairs
from labelguard.storage.files import write_atomically

QUIET = {
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}

_COLUMNS = {
    "prompt_ids": "prompt_ids",
    "first_ids": "chosen_ids",
    "second_ids": "rejected_ids",
    "ref_first": "ref_chosen_logps",
    "ref_second": "ref_rejected_logps",
}


def dpo_config(settings: Mapping[str, Any], output: Path, **more: Any) -> DPOConfig:
    """A configuration that saves and logs nothing."""
    return DPOConfig(str(output), **QUIET, **settings, **more)


def scored(
    name: str, pairs: Pairs, base: Path, settings: Mapping[str, Any], directory: Path
) -> pa.Table:
    """Columns prompt_ids, first_ids, second_ids, ref_first, ref_second; made once, then read."""
    path = directory / f"{name}.parquet"
    if not path.exists():
        sink = pa.BufferOutputStream()
        pq.write_table(_scored(pairs, base, settings, directory), sink)
        write_atomically(path, sink.getvalue().to_pybytes())
    return pq.read_table(path)


def _scored(pairs: Pairs, base: Path, settings: Mapping[str, Any], directory: Path) -> pa.Table:
    texts = {"prompt": pairs.prompt, "chosen": pairs.first, "rejected": pairs.second}
    config = dpo_config(
        settings, directory / "unused", non_private=True, precompute_ref_log_probs=True
    )
    trainer = DPOTrainer(str(base), config, train_dataset=Dataset.from_dict(texts))
    if len(trainer.train_dataset) != len(pairs):
        raise ValueError(f"{len(pairs) - len(trainer.train_dataset)} pairs do not fit the model")
    found = trainer.train_dataset.with_format("arrow")[:]
    return pa.table({own: found[name] for own, name in _COLUMNS.items()})


def as_written(tokens: pa.Table) -> Dataset:
    """All pairs as a tokenized data set, the first side of each as `chosen`."""
    return sides(tokens, np.arange(tokens.num_rows), np.ones(tokens.num_rows, bool))


def sides(tokens: pa.Table, pair: NDArray[np.intp], first: NDArray[np.bool_]) -> Dataset:
    """A tokenized data set of some pairs, of which the first or else the second is `chosen`."""
    ids, reference = (
        pa.concat_arrays([chunk for name in names for chunk in tokens[name].chunks])
        for names in (("first_ids", "second_ids"), ("ref_first", "ref_second"))
    )
    chosen, rejected = (
        pa.array(pair + np.where(wanted, 0, tokens.num_rows)) for wanted in (first, ~first)
    )
    columns = {
        "prompt_ids": tokens["prompt_ids"].take(pa.array(pair)),
        "chosen_ids": ids.take(chosen),
        "rejected_ids": ids.take(rejected),
        "ref_chosen_logps": reference.take(chosen),
        "ref_rejected_logps": reference.take(rejected),
    }
    return Dataset(pa.table(columns))
