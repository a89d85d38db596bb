"""What is asked of a training, read and checked before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.release.holdout import held_out
from labelguard.release.preferred_pairs import check_pairs
from labelguard_trainer.training import lineage, settings, sources
from labelguard_trainer.training.lineage import Learned
from labelguard_trainer.training.rows import AUTO, NoisyRows, PreferenceLoss
from labelguard_trainer.training.settings import Kind
from labelguard_trainer.training.sources import Source

__all__ = ["Request", "fewer"]


@dataclass(frozen=True, eq=False)
class Request:
    """A training: what is learned, from what, and how.

    `config` (read from `config_file`) and `lora` are what differs from the defaults; `holdout` is
    the share of items to evaluate on, `held_out`, shape (n,), which rows these are, `evaluated`,
    shape (n,), those of them that are asked about, `items`, shape (n,), the item of each row,
    `first`, shape (n,), whether its chosen side is the item's first, `base` what the model learned
    from before, and `said` what each row says of its noise, shape (n,) each.
    """

    kind: Kind
    source: Source
    model: str
    loss: PreferenceLoss
    config: Mapping[str, Any]
    lora: Mapping[str, Any] | None
    holdout: float
    probes: Path | None
    config_file: Path | None
    held_out: NDArray[np.bool_]
    evaluated: NDArray[np.bool_]
    items: NDArray[np.uint64]
    first: NDArray[np.bool_]
    base: tuple[Learned, ...]
    said: Mapping[str, NDArray[np.float64]]

    @classmethod
    def read(
        cls,
        kind: Kind,
        source: Source,
        model: str,
        *,
        loss: PreferenceLoss,
        config: str | Path | None,
        lora: str | None,
        holdout: float,
        eval_pairs: int,
        probes: str | Path | None,
    ) -> Request:
        """Read all files but the texts; raises `LabelguardError` for what cannot be trained."""
        check_pairs(source.file)
        if eval_pairs < 1:
            raise LabelguardError(f"--eval-pairs must be at least 1, found {eval_pairs}")
        said, (items, first) = sources.read_columns(source)
        out = held_out(items, holdout)
        if out.all():
            raise LabelguardError(f"no row is left to train on with --holdout {holdout:g}")
        kept = {name: values[~out] for name, values in said.items()}
        NoisyRows.read(kept, loss, non_private=source.card is None)
        if probes is not None:
            check_pairs(Path(probes))
        return cls(
            kind,
            source,
            model,
            loss,
            settings.read_config(Path(config)) if config else {},
            settings.parse_lora(lora) if lora else None,
            holdout,
            Path(probes) if probes else None,
            Path(config) if config else None,
            out,
            fewer(items, out, eval_pairs),
            items,
            first,
            lineage.base_of(model, private=source.card is not None),
            said,
        )

    @property
    def non_private(self) -> bool:
        """Whether it learns from raw labels."""
        return self.source.card is None

    @property
    def loss_name(self) -> str:
        """The loss that `auto` stands for."""
        if self.loss != AUTO:
            return self.loss
        return _fitting(self.said) if self.source.card is None else self.source.train_with


def fewer(items: NDArray[np.uint64], held_out: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """Of the held-out rows at most so many, shape (n,), but a whole item at least.

    Those of the smallest keys, as if fewer items were held out: a function of the texts alone.
    """
    keys = np.sort(items[held_out])
    if len(keys) <= most:
        return held_out
    few: NDArray[np.bool_] = held_out & (items < max(keys[most], keys[0] + np.uint64(1)))
    return few


def _fitting(said: Mapping[str, NDArray[np.float64]]) -> str:
    """What `auto` does with rows of a file, which no card speaks of."""
    for name, loss in (("flip_probability", "forward"), ("label_probability", "soft")):
        if not np.isnan(said[name]).all():
            return loss
    return "plain"
