"""The public parameters of a run on a language model: options, records, clip norm and rate.

A user says `--learner dpo|reward`, `--model`, `--lora`, `--train-config`, as of PROPS, and is told
what is wrong with them before anything is charged. A configuration has the fields of TRL's that
mean something here: steps and cohorts of labelers are the policy's, whose price was fixed
beforehand. `max_grad_norm` is the norm that a labeler's gradient is clipped to.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.inputs.pairs import DistinctPairs
from labelguard.learning.learners import LearnerOptions
from labelguard.mechanisms.statistic import Rows
from labelguard.release.mechanisms.statistic_design import add_further_labels
from labelguard.release.protocol import Finished, ReleaseContext
from labelguard_trainer.gradient.language import LanguageProblem
from labelguard_trainer.gradient.options import Weighting
from labelguard_trainer.gradient.records import Records
from labelguard_trainer.training.learners import PreparedBase
from labelguard_trainer.training.settings import Kind

_READ = {
    *("beta", "bf16", "learning_rate", "max_grad_norm", "max_length", "model_init_kwargs", "optim"),
    *("per_device_eval_batch_size", "per_device_train_batch_size", "seed", "use_cpu"),
}
_OPTIMIZERS = ("adamw_torch", "sgd")
# Beyond, gradients or noise are lost in single precision.
_RANGES = {"beta": (1e-6, 1e6), "max_grad_norm": (1e-12, 1e12)}


class PreparedLanguage(PreparedBase):
    """A base model that learns by noisy steps."""

    @classmethod
    def check_settings(
        cls, kind: Kind, settings: Mapping[str, Any], lora: Mapping[str, Any]
    ) -> None:
        """With what noisy steps cannot use."""
        super().check_settings(kind, settings, lora)
        if lora.get("lora_dropout"):
            raise LabelguardError(
                "LoRA's dropout must be 0 here: noise is what keeps a private model from learning "
                "by heart; leave dropout out"
            )
        unread = sorted(settings.keys() - _READ)
        if unread:
            raise LabelguardError(
                f"{unread[0]} has no meaning for a gradient mechanism, whose steps are the "
                f"policy's; its configuration may have {', '.join(sorted(_READ))}"
            )
        for name in _RANGES.keys() & settings:
            low, high = _RANGES[name]
            if not (isinstance(settings[name], int | float) and low <= settings[name] <= high):
                raise LabelguardError(f"{name} must be between {low:g} and {high:g} here")
        if settings.get("optim", _OPTIMIZERS[0]) not in _OPTIMIZERS:
            raise LabelguardError(f"optim must be one of {', '.join(_OPTIMIZERS)} here")

    @property
    def clip(self) -> float | None:
        """The clip norm, if one was asked for."""
        norm = self.training.settings.get("max_grad_norm")
        return None if norm is None else float(norm)

    def open(self, records: Records) -> LanguageProblem:
        """Return the model, ready to learn from these records."""
        gc.collect()  # the trainer by which settings were checked is full of cycles, and of weights
        return LanguageProblem(self.training, records)


def choose_label_limit(norm_of: Callable[[int], float], cohort: float, most: int) -> int:
    """G, a power of 2 and at most `most`: doubled as long as that lowers the noise by more than
    doubling the cohort would.

    `norm_of(G)` is the median norm of a labeler's mean gradient over G labels, to which the noise
    is scaled; `cohort` is by what the noise on a mean changes if cohorts are doubled, σ(2q)/2σ(q),
    at most 1. Source: user-level-dp-finetuning, algorithm 3. There the gradients are of real
    labels, which would be a query of its own that nobody accounts for; here labels are fair coins.
    """
    limit, norm = 1, norm_of(1)
    while 2 * limit <= most:
        further = norm_of(2 * limit)
        if further >= cohort * norm:
            break
        limit, norm = 2 * limit, further
    return limit


# Units whose gradients, of simulated labels, tell the clip norm.
_SAMPLE = 32


@dataclass(frozen=True, eq=False, repr=False)
class LanguageRun:
    """A `LearnerRun` of a reward or DPO model; `pairs` of its texts are those of the input."""

    prepared: PreparedLanguage
    records: Records
    clip: float
    pairs: int

    @property
    def parameters(self) -> dict[str, Any]:
        """Model and settings, clip norm and labels a step."""
        fixed = {"clip": self.clip, "limit": self.records.limit}
        return {"identity": dict(self.prepared.identity), **fixed}

    @property
    def card_facts(self) -> dict[str, Any]:
        """The model it started from, and its noise."""
        return {
            "identity": dict(self.prepared.identity),
            "labels_a_step": self.records.limit,
            "noise_drawn": "in floating point",
        }

    def problem(self) -> LanguageProblem:
        """Return the base model."""
        return self.prepared.open(self.records)

    def predict_log_odds(self, problem: LanguageProblem) -> NDArray[np.float64]:
        """Of the model, as it is."""
        return problem.margins()[: self.pairs]

    def add_model_and_further_labels(
        self,
        context: ReleaseContext,
        problem: LanguageProblem,
        pairs: DistinctPairs,
        finished: Finished,
    ) -> Finished:
        """With the directory `model`, and labels of further pairs."""
        directory = context.opened.project.work / "model"
        finished = replace(finished, files=problem.export(directory))
        probability = 0.5 * (1 + np.tanh(problem.margins()[self.pairs :] / 2))
        return add_further_labels(finished, context, pairs, lambda new: probability[new])


def prepare_language_run(
    kind: Kind,
    options: LearnerOptions,
    pairs: DistinctPairs,
    further: DistinctPairs | None,
    rows: Rows,
    *,
    weighting: Weighting,
    cohort: float,
    recorded: Mapping[str, Any] | None,
) -> LanguageRun:
    """Return a reward or DPO model on the texts of pairs that `rows` compare, and of further ones.

    The clip norm is `max_grad_norm` of the configuration, or the median norm of gradients at the
    base model whose labels are fair coins; so are G (see `choose_label_limit`; `cohort` is its
    argument) and all else public. `recorded` are the parameters of a release that is being resumed.

    Raises `PolicyError` for rankings of more than two: language models learn from pairs.
    """
    texts = [pairs.table.select(_TEXTS)]
    texts += [further.table.select(_TEXTS)] if further else []
    prepared = PreparedLanguage.of(kind, pa.concat_tables(texts), options)
    most = int(np.median(np.bincount(rows.unit)[np.unique(rows.unit)]))

    def make_records(limit: int) -> Records:
        return Records(rows.pair, rows.unit, rows.units, limit, weighting)

    if recorded:
        clip, limit = float(recorded["clip"]), int(recorded["limit"])
    else:
        rng = np.random.default_rng(0)
        units = np.unique(rows.unit)
        some = np.sort(rng.permutation(units)[:_SAMPLE])
        coins = rng.integers(0, 2, len(rows)).astype(np.float64)

        @cache
        def find_usual_norm(limit: int) -> float:
            norms = prepared.open(make_records(limit)).bound_gradient_norms(some, coins)
            norms = norms[np.isfinite(norms)]
            return float(np.median(norms[norms > 0])) if (norms > 0).any() else 0.0

        limit = choose_label_limit(
            lambda g: find_usual_norm(g) / g ** (weighting == "root") ** 0.5, cohort, most
        )
        clip = prepared.clip or find_usual_norm(limit)
    if not clip > 0:
        raise InvalidLabels("no label can move the model: both sides of every pair score the same")
    return LanguageRun(prepared, make_records(limit), clip, len(pairs))


_TEXTS = ["prompt", "first", "second"]
