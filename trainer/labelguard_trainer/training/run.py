"""Trains a model on a release: what `labelguard train` does."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.project.opening import Where
from labelguard.release.writer import Release
from labelguard.text import Progress, no_progress
from labelguard_trainer.training.evaluate import TrainingResult
from labelguard_trainer.training.request import TrainingRequest, open_raw, open_release
from labelguard_trainer.training.rows import AUTO, PreferenceLoss
from labelguard_trainer.training.runs import RunDirectory, check_new_directory
from labelguard_trainer.training.settings import Kind


def train(
    kind: Kind,
    release: Release | str | Path,
    model: str | Path,
    *,
    output: str | Path,
    config: str | Path | None = None,
    lora: str | None = None,
    loss: PreferenceLoss = AUTO,
    holdout: float = 0.1,
    eval_pairs: int = 1000,
    probes: str | Path | None = None,
    non_private: bool = False,
    project: Where = None,
    progress: Progress = no_progress,
) -> TrainingResult:
    """Train `model` (a path, or a hub's id) by DPO, or a reward model on top of it, on a release.

    `release` is what `privatize` returned, a directory, or an id in `project`; with `non_private` a
    file of raw labels. `config` is a YAML file of fields of `DPOConfig` or `RewardConfig`, `lora`
    text like `r=16,alpha=32`, `loss` the card's `train_with` unless said otherwise. About a share
    `holdout` of the items is not trained on, and evaluated on as far as `eval_pairs` rows of them
    go; `probes` is a file of pairs that the caller declares public, whose `chosen` is right.

    Works in `OUTPUT.partial`, where the same call goes on after an interruption; `output` then
    appears whole: the model, its tokenizer, TRAINING_CARD.md, evaluation.json, metrics.jsonl and
    curves.svg. Under `accelerate launch` every process calls it.

    Guarantee: post-processing. It reads a release, public files and no raw label, so the model has
    the release's (ε, δ), if its base is public too. Raises `RawLabels` for anything else unless
    `non_private`, and `LabelguardError` for what cannot be trained, before the model is loaded
    where that can be told.
    """
    if kind not in get_args(Kind):
        raise LabelguardError(f"kind must be {' or '.join(get_args(Kind))}, found {kind!r}")
    if not str(model):
        raise LabelguardError("--model is empty: give a directory, or an id of a hub")
    extras.require_extra("train", f"labelguard train {kind}")
    run = RunDirectory(Path(output))
    check_new_directory(run.output)
    where = str(release.path if isinstance(release, Release) else release)
    source = open_raw(where) if non_private else open_release(where, project)
    request = TrainingRequest.read(
        kind,
        source,
        str(model),
        loss=loss,
        config=config,
        lora=lora,
        holdout=holdout,
        eval_pairs=eval_pairs,
        probes=probes,
    )
    progress("loading libraries", None)
    from labelguard_trainer.training import fitting

    return fitting.fit(request, run, progress)
