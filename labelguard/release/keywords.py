"""What `privatize` takes, for type checkers; None means: by default.

A test compares these keywords with the options that are declared (`labelguard.options`,
`policy.request`, `release.methods.options`, `labelguard_trainer.gradient.options`). Those of
another package's mechanism pass as a dictionary that names the mechanism too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from labelguard.ingest.sources import Input
from labelguard.options import BadRows, Exhausted, Recurrence
from labelguard.policy.label_values import Skips, Ties
from labelguard.policy.policy import Unit

Ours = Literal["auto", "rr", "statistic", "props", "evaluation", "uls", "els", "els-group", "aup"]
"""The mechanisms of labelguard."""


class Keywords(TypedDict, total=False):
    """The options of a release, and of all mechanisms of labelguard."""

    # what it may cost
    epsilon: float | None
    delta: float | None
    ties: Ties | None
    tie_status_public: bool | None
    unit: Unit | None
    max_labels_per_labeler: int | None
    label_values: str | None
    skips: Skips | None
    assignment_reactive: bool | None
    accept_unproven: bool | None
    public_columns: Sequence[str] | None
    # how the input is read
    columns: Mapping[str, str] | None
    format: str | None
    split: str | None
    question: str | None
    bad_rows: BadRows | None
    max_input_bytes: int | None
    # for how many releases, and how it is run
    once: bool | None
    uses: int | None
    recurring: Recurrence | None
    duration: str | None
    exhausted: Exhausted | None
    again: bool | None
    accept_delta: bool | None
    output: str | Path | None
    workers: int | None
    # statistic, props, and all that fit a head
    features: str | None
    components: int | None
    ridge: float | None
    agreement: float | None
    also: Input | None
    whitening: float | None
    floor: float | None
    clip_quantile: float | None
    # props, and all by which a model learns
    stages: int | None
    combine: Literal["hard", "soft"] | None
    learner: str | None
    model: str | None
    lora: str | None
    train_config: str | Path | None
    # uls, els, els-group, aup
    sampling_probability: float | None
    steps: int | None
    weighting: Literal["mean", "root"] | None
    records: int | None
    concentration: float | None
    # evaluation
    head: str | Path | None
