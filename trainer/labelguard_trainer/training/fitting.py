"""Fits a model to a request: trainer, checkpoints, evaluation, card. Loads torch, when imported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset, Features
from numpy.typing import NDArray
from transformers import PrinterCallback

from labelguard.errors import LabelguardError
from labelguard.release.pairs_file import holds_tool_calls, type_tool_calls
from labelguard.storage.buckets import escape_file_names
from labelguard.storage.files import SUMS, format_sums, hash_files, write_atomically
from labelguard.text import Progress
from labelguard_trainer.training import evaluate, guard, models, settings
from labelguard_trainer.training.evaluate import ModelEvaluation, TrainingResult
from labelguard_trainer.training.models import check_weights_complete, shorten_library_errors
from labelguard_trainer.training.reporting import (
    TrainingCallback,
    collect_metrics,
    silence_libraries,
)
from labelguard_trainer.training.request import TrainingRequest
from labelguard_trainer.training.runs import RunDirectory
from labelguard_trainer.training.stage_training import TRAINERS, build_lora_config
from labelguard_trainer.training.training_card import PANELS, Panels, draw_curves, to_markdown

_COLUMNS = ("prompt", "chosen", "rejected")
_ROW = "held_out_row"
# Of what trainers write beside a model: a pickle with paths of here, and an empty form of peft's.
_UNPUBLISHED = ("training_args.bin", "README.md")
DEFAULTS = {
    "logging_steps": 0.02,  # shares of all steps: curves of fifty points, ten checkpoints
    "logging_first_step": True,
    "save_steps": 0.1,
    "eval_steps": 0.2,
    "save_total_limit": 2,
    "report_to": "none",
    "disable_tqdm": True,
}
_PROMPT_DIFFERS = (
    "some prompts are tokenized in another way alone than with their response; end prompts with a "
    "space or a new line, or take a chat template that writes both alike"
)


def fit(request: TrainingRequest, run: RunDirectory, progress: Progress) -> TrainingResult:
    """Train, evaluate and publish; the same request resumes what was interrupted."""
    settings.check_fields(request.kind, request.config)
    how = f" with {request.config_file}" if request.config_file else ""
    refused = f"{request.model} cannot be trained{how}"
    with silence_libraries() as log:
        with shorten_library_errors(refused):
            identity, fixed = models.identify_and_pin(request.model, request.config)
            evaluated = {"eval_strategy": "steps" if request.held_out.any() else "no"}
            args = TRAINERS[request.kind][0](
                output_dir=str(run.checkpoints),
                preference_loss=request.loss,
                non_private=request.non_private,
                **{**evaluated, **DEFAULTS, **fixed},
            )
        parameters = _collect_run_parameters(request, identity)
        with begin(run, parameters, args):
            with shorten_library_errors(refused):
                trainer, probes = _build_trainer(request, run, args, progress)
                resumed = train_from_checkpoint(trainer, run, request.model, identity)
                evaluation = _evaluate(request, trainer, probes, progress)
            notes = [*_notes(request), *([_PROMPT_DIFFERS] if log.prompt_differs else [])]
            save_whole(trainer, run.finished_path)
            held_out = int(request.held_out.sum())
            privacy = (request.source.card or {}).get("privacy", {})
            trained = TrainingResult(
                path=str(run.output),
                kind=request.kind,
                release=request.source.release,
                epsilon=privacy.get("epsilon"),
                delta=privacy.get("delta"),
                unit=privacy.get("unit"),
                model=request.model,
                loss=request.loss_name,
                rows=len(request.held_out) - held_out - trainer.left_out,
                left_out=trainer.left_out,
                held_out=held_out,
                evaluated=int(request.evaluated.sum()),
                steps=trainer.state.global_step,
                resumed=resumed,
                evaluation=evaluation,
                notes=notes,
            )
            if trainer.is_world_process_zero():
                # Each process has a part of the weights, which a trainer cannot merge.
                sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
                if request.kind == "reward" and request.lora and sharded:
                    models.merge_adapters("reward", request.model, run.finished_path, trainer)
                adapter = (run.finished_path / "adapter_config.json").exists()
                card = to_markdown(request, trained, parameters, adapter=adapter)
                texts = {"TRAINING_CARD.md": card, "evaluation.json": evaluation.to_json()}
                publish_with_files(run, trainer, texts)
            trainer.accelerator.wait_for_everyone()
    return trained


def _collect_run_parameters(request: TrainingRequest, identity: str) -> dict[str, Any]:
    """Return what decides the weights: a run goes on only if all of it is the same."""
    return {
        "kind": request.kind,
        "release": request.source.digest,
        "model": identity,
        "loss": request.loss_name,
        "config": request.config,
        "lora": request.lora,
        "holdout": request.holdout,
        "versions": get_package_versions(),
    }


def get_package_versions() -> dict[str, str]:
    """Return the versions that decide the weights, beside all else that does."""
    return {name: version(name) for name in ("labelguard", "trl", "transformers", "torch")}


@contextmanager
def begin(run: RunDirectory, parameters: Mapping[str, Any], args: Any) -> Iterator[None]:
    """The run's directory, held by the first process; the others wait until it is there.

    Raises `LabelguardError` where processes read other files or settings than the first."""
    guard.check_processes_joined(args)
    if args.world_size > 1:  # they decide what a batch is
        parameters = {**parameters, "processes": args.world_size}
    with nullcontext() if args.process_index else run.begin(parameters):
        text = json.dumps(parameters, sort_keys=True, default=str)
        if len(set(gather_object([hashlib.sha256(text.encode()).hexdigest()]))) > 1:
            raise LabelguardError(
                "the processes do not read the same release, model or settings: give each of them "
                "the same files, and the same versions of labelguard and its libraries"
            )
        yield


def save_whole(trainer: Any, directory: Path) -> None:
    """Write what a trainer has trained; all processes call it, and the first one writes.

    Weights that are sharded over processes are gathered.
    """
    if trainer.is_fsdp_enabled:  # of shards nothing would be saved
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    with guard.explain_failed_write(directory):
        trainer.save_model(str(directory))


def train_from_checkpoint(trainer: Any, run: RunDirectory, model: str, identity: str) -> bool:
    """Train on from the newest checkpoint, if there is one; return whether there was.

    Raises `LabelguardError` if the model that was loaded is not the one that the card will name,
    though others know its path.
    """
    args, checkpoint = trainer.args, run.last_checkpoint()
    revision = (args.model_init_kwargs or {}).get("revision")
    code = args.trust_remote_code
    models.check_unchanged(model, identity, revision=revision, trust_remote_code=code)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return checkpoint is not None


def publish_with_files(
    run: RunDirectory, trainer: Any, texts: Mapping[str, str], panels: Panels = PANELS
) -> None:
    """Write these files, metrics, curves and hashes beside a saved model, and publish all of it."""
    lines, directory = collect_metrics(trainer.state), run.finished_path
    metrics = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    with guard.explain_failed_write(directory):
        for name in _UNPUBLISHED:
            (directory / name).unlink(missing_ok=True)
        for name, text in {**texts, "metrics.jsonl": metrics}.items():
            write_atomically(directory / name, text.encode())
        draw_curves(lines, directory, panels)
        sums = format_sums(hash_files(directory))  # what may be published
        write_atomically(directory / SUMS, sums.encode("ascii"))
    run.publish()


def _build_trainer(
    request: TrainingRequest, run: RunDirectory, args: Any, progress: Progress
) -> tuple[Any, Dataset | None]:
    """Return the trainer, and the probes that it will be evaluated on beside its held-out rows."""
    cache = run.cache(args.process_index)
    columns = [name for name, values in request.noise_columns.items() if not np.isnan(values).all()]
    rows = _read_dataset(request.source.file, cache).select_columns([*_COLUMNS, *columns])
    out = int(request.held_out.sum())
    counts = f"{len(rows) - out:,} rows ({out:,} held out)"
    held_out = rows.select(np.flatnonzero(request.evaluated))
    lora = build_lora_config(request.kind, request.lora) if request.lora else None
    progress("loading the model and tokenizing rows", None)
    init = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}
    check_weights_complete(request.kind, request.model, init)
    trainer = TRAINERS[request.kind][1](
        model=request.model,
        args=args,
        train_dataset=rows.select(np.flatnonzero(~request.held_out)),
        eval_dataset=held_out.add_column(_ROW, np.arange(len(held_out))) if held_out else None,
        peft_config=lora,
        callbacks=[TrainingCallback(run, counts, progress)],
    )
    trainer.remove_callback(PrinterCallback)
    if request.probes is None:
        return trainer, None
    return trainer, trainer.prepare_for_scoring(
        _read_dataset(request.probes, cache).select_columns(list(_COLUMNS))
    )


def _read_dataset(file: Path, cache: Path) -> Dataset:
    read = Dataset.from_parquet if file.suffix == ".parquet" else Dataset.from_json
    rows = read(escape_file_names(file), cache_dir=str(cache))
    if file.suffix != ".parquet":
        return rows
    with duckdb.connect() as connection:
        has_calls = holds_tool_calls(connection.read_parquet(escape_file_names(file)))
    if not has_calls:
        return rows
    # A chat template writes lists, not the text of their JSON.
    return rows.cast(Features.from_arrow_schema(type_tool_calls(rows.features.arrow_schema)))


def _evaluate(
    request: TrainingRequest, trainer: Any, probes: Dataset | None, progress: Progress
) -> ModelEvaluation:
    rows = request.evaluated
    progress(f"evaluating {int(rows.sum()):,} held-out rows", None)
    margins = np.full(int(rows.sum()), np.nan)  # of rows that the trainer left out
    if rows.any():
        margins[trainer.eval_dataset[_ROW][:]] = trainer.margins(trainer.eval_dataset)
    probed = None if probes is None else trainer.margins(probes)
    check_finite(trainer, margins[~np.isnan(margins)], *([] if probed is None else [probed]))
    margins_of_others: list[Any] = [None, None]  # one process asks the teacher, for all of them
    if trainer.is_world_process_zero():
        margins_of_others[0] = evaluate.release_baselines(request, progress)
        margins_of_others[1] = evaluate.probe_baselines(request, progress)
    baselines, probe_baselines = broadcast_object_list(margins_of_others)
    flips = (request.source.card or {}).get("flip_probability") or {}
    return evaluate.evaluate(
        margins,
        flip_probability=request.noise_columns["flip_probability"][rows],
        label_probability=request.noise_columns["label_probability"][rows],
        items=request.items[rows],
        baselines=baselines,
        probes=probed,
        probe_baselines=probe_baselines,
        blocks=flips.get("blocks", ()),
    )


def check_finite(trainer: Any, *margins: NDArray[np.float64]) -> None:
    """Raise `LabelguardError` for a model that overflowed: it would say nothing of any pair."""
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    finite = (
        np.isfinite(losses[-1:]).all()
        and all(np.isfinite(of_rows).all() for of_rows in margins)
        and all(bool(weight.isfinite().all()) for weight in trainer.model.parameters())
    )
    if not finite:
        raise LabelguardError(
            "training diverged: its loss, margins or weights are not finite; lower learning_rate, "
            f"and remove {Path(trainer.args.output_dir).parent} or choose another -o"
        )


def _notes(request: TrainingRequest) -> Iterator[str]:
    if request.non_private:
        yield "trained on raw labels: what people said may be read from this model"
    elif request.loss == "plain" and request.source.loss_from_card == "forward":
        yield "loss plain takes flipped labels as the truth: for comparison only"
    if request.holdout and not request.held_out.any():
        yield "there are too few items to hold one out; nothing was evaluated on the release"
