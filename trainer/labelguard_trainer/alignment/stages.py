"""Stages of an alignment: supervised fine-tuning, and reinforcement learning of a policy.

Each works in `DIR/NAME.partial`, where the same recipe goes on after an interruption, and appears
whole as `DIR/NAME`: the model, its tokenizer, TRAINING_CARD.md, metrics.jsonl, curves and
stage.json, which says what decided the weights. A stage that is there is not trained again.

Everything here is a function of releases and public texts: how long it trains, where it stops and
what it generates costs nothing (post-processing).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trl
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback

from labelguard.analysis.reward import Content
from labelguard.errors import LabelguardError
from labelguard.text import Progress
from labelguard_trainer.alignment.recipe import RlRecipe, SftRecipe
from labelguard_trainer.training import guard, models, settings
from labelguard_trainer.training.fitting import (
    DEFAULTS,
    begin,
    check_finite,
    get_package_versions,
    publish_with_files,
    save_whole,
    train_from_checkpoint,
)
from labelguard_trainer.training.models import check_weights_complete, shorten_library_errors
from labelguard_trainer.training.reporting import TrainingCallback, silence_libraries
from labelguard_trainer.training.runs import RunDirectory
from labelguard_trainer.training.stage_training import build_lora_config, token_ids

RewardFunction = Callable[..., list[float]]

_RECORD = "stage.json"


class _SFTConfig(guard.CorrectedDefaults, trl.SFTConfig):  # type: ignore[misc, unused-ignore]
    pass


class _RLOOConfig(guard.CorrectedDefaults, trl.RLOOConfig):  # type: ignore[misc, unused-ignore]
    pass


class _GRPOConfig(guard.CorrectedDefaults, trl.GRPOConfig):  # type: ignore[misc, unused-ignore]
    pass


_TRAINERS = {
    "sft": (_SFTConfig, trl.SFTTrainer),
    "rloo": (_RLOOConfig, trl.RLOOTrainer),
    "grpo": (_GRPOConfig, trl.GRPOTrainer),
}
# GRPO divides by the standard deviation of a group, which throws the reward's scale away.
_USUAL: Mapping[str, Mapping[str, Any]] = {
    "sft": {},
    "rloo": {"num_generations": 4},
    "grpo": {"num_generations": 4, "beta": 0.05, "scale_rewards": "none"},
}
_PANELS = {
    "sft": (("loss", "loss"), ("entropy", "entropy, nats a token")),
    "rl": (("reward", "reward"), ("kl", "KL from the start, nats a token")),
}
# What is told of a policy, by TRL's names: before training and after it, on held-out prompts.
MEASURES = {
    "reward": "reward",
    "kl": "kl",
    "distance": "distance",
    "length": "completions/mean_length",
}


@dataclass(frozen=True)
class AlignmentStage:
    """A stage that is done."""

    # sft or rl
    name: str
    # the directory of its model
    path: str
    # rows or prompts that it learned from
    rows: int
    # prompts that leave no room for a response, which were left out
    left_out: int
    # steps of the optimizer
    steps: int
    # whether it stopped before its last step, at max_kl
    stopped: bool
    # of responses to held-out prompts, before training: reward, kl, distance, length
    before: Mapping[str, float]
    # the same after training
    after: Mapping[str, float]


# Returns the card of a stage, by what it has become and what decided its weights.
WriteCard = Callable[[AlignmentStage, Mapping[str, Any]], str]


def fine_tune(
    recipe: SftRecipe,
    model: str,
    prompts: Sequence[Content],
    responses: Sequence[Content],
    output: Path,
    write_card: WriteCard,
    progress: Progress,
) -> AlignmentStage:
    """Train a language model to write `responses` to `prompts` (n each): stage `sft`."""
    rows = Dataset.from_dict({"prompt": list(prompts), "completion": list(responses)})
    stage = _Stage("sft", "sft", model, recipe.config, recipe.lora, output, write_card, progress)
    return stage.run({"rows": _digest(rows)}, rows, None, {}, None)


def train_policy(
    recipe: RlRecipe,
    model: str,
    reward: RewardFunction,
    prompts: Sequence[Content],
    output: Path,
    write_card: WriteCard,
    progress: Progress,
    *,
    identity: Mapping[str, Any],
) -> AlignmentStage:
    """Train a policy by RLOO or GRPO to get a high `reward` for its responses: stage `rl`.

    `identity` names the reward. Prompts that leave no room for a response are left out; a share of
    the others, always the same, is held out. Raises `LabelguardError` if none is left.
    """
    stage = _Stage(
        "rl", recipe.method, model, recipe.config, recipe.lora, output, write_card, progress
    )
    rows = Dataset.from_dict({"prompt": list(prompts)})
    parameters = {
        "rows": _digest(rows),
        "reward": dict(identity),
        "max_kl": recipe.max_kl,
        "holdout": recipe.holdout,
    }
    return stage.run(parameters, rows, recipe.holdout, {"reward_funcs": [reward]}, recipe.max_kl)


@dataclass(frozen=True, eq=False)
class _Stage:
    """A trainer of TRL in a directory of its own; `kind` is that of its configuration."""

    name: str
    kind: str
    model: str
    config: Mapping[str, Any]
    lora: str | None
    output: Path
    write_card: WriteCard
    progress: Progress

    def run(
        self,
        parameters: Mapping[str, Any],
        rows: Dataset,
        holdout: float | None,
        options: dict[str, Any],
        max_kl: float | None,
    ) -> AlignmentStage:
        """Train on rows, or return what an earlier run of the same parameters left."""
        settings.check_fields(self.kind, self.config)
        run = RunDirectory(self.output)
        with (
            silence_libraries(),
            shorten_library_errors(f"{self.model} cannot be trained (stage {self.name})"),
        ):
            identity, fixed = models.identify_and_pin(self.model, self.config)
            if self.kind != "sft":
                fixed.pop("max_length")
            decisive = {
                **parameters,
                "model": identity,
                "config": settings.select_public_settings(self.config),  # it goes with the model
                "method": self.kind,
                "lora": self.lora,
                "versions": get_package_versions(),
            }
            if done := self._load_result(decisive):
                return done
            args = self._build_trainer_config(run, fixed)
            if max_kl and (not args.beta or args.sync_ref_model or args.logging_strategy == "no"):
                raise LabelguardError(
                    "max_kl needs the logged KL from the model it began from: it goes with none of "
                    "beta: 0, sync_ref_model and logging_strategy: no"
                )
            with begin(run, decisive, args):
                tokenizer = models.load_tokenizer(
                    self.model, trust_remote_code=args.trust_remote_code
                )
                fitting, left_out = self._drop_long_prompts(rows, tokenizer, args)
                train, held_out = _split(fitting, holdout)
                trainer = self._build_trainer(run, args, tokenizer, train, held_out, options)
                stop = _StopAtKL(max_kl)
                trainer.add_callback(stop)
                before = self._evaluate_held_out(trainer, "before training") if held_out else {}
                train_from_checkpoint(trainer, run, self.model, identity)
                after = self._evaluate_held_out(trainer, "after training") if held_out else {}
                check_finite(trainer)
                result = AlignmentStage(
                    self.name,
                    str(run.output),
                    len(train),
                    left_out,
                    trainer.state.global_step,
                    stop.stopped,
                    before,
                    after,
                )
                self.progress("saving the model", None)
                save_whole(trainer, run.finished_path)
                if trainer.is_world_process_zero():
                    if self.lora:
                        with guard.explain_failed_write(run.finished_path):
                            models.merge_adapters("dpo", self.model, run.finished_path, trainer)
                        models.check_unchanged(
                            self.model, identity, trust_remote_code=args.trust_remote_code
                        )
                    record = {"parameters": decisive, "result": {**vars(result), "path": "."}}
                    texts = {
                        "TRAINING_CARD.md": self.write_card(result, decisive),
                        _RECORD: json.dumps(record, indent=2),
                    }
                    publish_with_files(run, trainer, texts, _PANELS[self.name])
                trainer.accelerator.wait_for_everyone()
        return result

    def _load_result(self, parameters: Mapping[str, Any]) -> AlignmentStage | None:
        """Return the result of a stage that is there; refuse one of another recipe."""
        file = self.output / _RECORD
        if not self.output.exists():
            return None
        if not file.is_file():
            raise LabelguardError(f"{self.output} is no stage of a recipe; choose another -o")
        record = json.loads(file.read_bytes())
        given = json.loads(json.dumps(parameters))
        other = sorted(name for name in given if given[name] != record["parameters"].get(name))
        if other:
            raise LabelguardError(
                f"{self.output} is of another recipe (other: {', '.join(other)}); remove it and "
                "what was trained after it, or choose another -o"
            )
        return AlignmentStage(**{**record["result"], "path": str(self.output)})

    def _build_trainer_config(self, run: RunDirectory, fixed: Mapping[str, Any]) -> Any:
        given = {**DEFAULTS, "eval_strategy": "no", **_USUAL[self.kind], **fixed}
        return _TRAINERS[self.kind][0](output_dir=str(run.checkpoints), **given)

    def _drop_long_prompts(self, rows: Dataset, tokenizer: Any, args: Any) -> tuple[Dataset, int]:
        """Return the rows whose prompt leaves room for a whole response, and how many do not."""
        if self.kind == "sft":
            return rows, 0
        text = models.load_config(self.model).get_text_config()
        positions = getattr(text, "max_position_embeddings", None)
        if positions is None:
            return rows, 0
        room = positions - args.max_completion_length
        ids = token_ids(tokenizer, list(rows["prompt"]), add_generation_prompt=True)
        fits = np.flatnonzero([len(prompt) <= room for prompt in ids])
        if not len(fits):
            raise LabelguardError(
                f"no prompt leaves room for {args.max_completion_length} tokens of response in "
                f"the {positions} positions of {self.model}; lower max_completion_length"
            )
        return rows.select(fits), len(rows) - len(fits)

    def _build_trainer(
        self,
        run: RunDirectory,
        args: Any,
        tokenizer: Any,
        train: Dataset,
        held_out: Dataset | None,
        options: dict[str, Any],
    ) -> Any:
        self.progress("loading the model", None)
        init = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}
        check_weights_complete("dpo", self.model, init)
        lora = settings.parse_lora(self.lora) if self.lora else None
        what = "row" if self.kind == "sft" else "prompt"
        trainer = _TRAINERS[self.kind][1](
            model=self.model,
            args=args,
            train_dataset=train,
            eval_dataset=held_out,
            processing_class=tokenizer,
            peft_config=build_lora_config("dpo", lora) if lora else None,
            callbacks=[TrainingCallback(run, f"{len(train):,} {what}s", self.progress)],
            **options,
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    def _evaluate_held_out(self, trainer: Any, when: str) -> dict[str, float]:
        """Return what is told of responses to held-out prompts."""
        self.progress(f"writing responses to held-out prompts, {when}", None)
        values = trainer.evaluate()
        return {
            name: float(values[f"eval_{key}"])
            for name, key in MEASURES.items()
            if f"eval_{key}" in values
        }


class _StopAtKL(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Stops once the logged KL is above a bound: a function of public and released values."""

    def __init__(self, bound: float | None) -> None:
        self._bound = bound
        self.stopped = False

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look at the newest line."""
        kl = state.log_history[-1].get("kl")
        if self._bound is not None and kl is not None and kl > self._bound:
            self.stopped = control.should_training_stop = True


def _split(rows: Dataset, holdout: float | None) -> tuple[Dataset, Dataset | None]:
    """Return rows to train on, and held-out ones: every k-th of the order in which they stand."""
    if not holdout or len(rows) < 2:
        return rows, None
    count = min(max(round(len(rows) * holdout), 1), len(rows) - 1)
    out = np.unique(np.linspace(0, len(rows) - 1, count).astype(int))
    return rows.select(np.setdiff1d(np.arange(len(rows)), out)), rows.select(out)


def _digest(rows: Dataset) -> str:
    """SHA-256 of what stands in rows, in their order."""
    digest = hashlib.sha256()
    for row in iter(rows):
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
