"""The progress of a training while it runs: one line, `metrics.jsonl`, and nothing else."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import datasets
from huggingface_hub import constants
from transformers import TrainerCallback, TrainerState
from transformers.utils import logging as transformers_logging

from labelguard.errors import LabelguardError
from labelguard.text import Progress
from labelguard_trainer.training.runs import RunDirectory, mark_complete

_LIBRARIES = ("trl", "accelerate", "peft", "datasets", "labelguard_trainer")
_SUMMARY = "train_runtime"
_OF_TIME = ("_runtime", "_per_second", "step_time", "num_tokens")  # tokens since a run was resumed


class TrainingCallback(TrainerCallback):
    """Progress of a training on `rows`, metrics, and the mark of complete checkpoints."""

    def __init__(self, run: RunDirectory, rows: str, progress: Progress) -> None:
        self._run = run
        self._rows = rows
        self._progress = progress
        self._loss = ""

    def on_init_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """DPO's reference may be asked about all rows before the first step."""
        self._progress(f"preparing to train on {self._rows}", None)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Of a resumed training the lines up to its checkpoint stay, and no later one.

        Raises `LabelguardError` if there is no step to take.
        """
        if state.max_steps < 1:
            raise LabelguardError("no step would be taken: raise num_train_epochs or max_steps")
        self._report_step(state)
        if state.is_world_process_zero:
            self._run.metrics.write_text(
                "".join(map(_to_json_line, collect_metrics(state))), encoding="utf-8"
            )

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """One step further."""
        self._report_step(state)

    def on_log(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """One line more."""
        entry = state.log_history[-1]
        if "loss" in entry:
            self._loss = f", loss {entry['loss']:.3f}"
        if state.is_world_process_zero and _SUMMARY not in entry:
            with self._run.metrics.open("a", encoding="utf-8") as file:
                file.write(_to_json_line(_drop_timings(entry)))

    def on_save(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Every process has written its part of a checkpoint once all are here."""
        args.distributed_state.wait_for_everyone()
        if state.is_world_process_zero:
            mark_complete(self._run.checkpoints / f"checkpoint-{state.global_step}")

    def on_prediction_step(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Rows are evaluated between two steps."""
        if state.max_steps:
            self._report_step(state, ", evaluating")

    def _report_step(self, state: TrainerState, beside: str = "") -> None:
        step, steps = state.global_step, state.max_steps
        text = f"training on {self._rows}: step {step:,} of {steps:,}{self._loss}{beside}"
        self._progress(text, step / steps)


def collect_metrics(state: TrainerState) -> list[Mapping[str, Any]]:
    """Return all that was logged, but for the summary at the end."""
    return [_drop_timings(entry) for entry in state.log_history if _SUMMARY not in entry]


def _drop_timings(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a line without what depends on the machine's speed or on interruptions.

    Names are sorted, as those of a resumed run are; a number that JSON cannot hold is None.
    """
    return {"step": entry["step"]} | {
        name: value if not isinstance(value, float) or math.isfinite(value) else None
        for name, value in sorted(entry.items())
        if not name.endswith(_OF_TIME)
    }


class LogFilter(logging.Filter):
    """Keeps loggers silent below errors, and notices what is said again in words of our own.

    TRL says that a prompt alone is tokenized in another way with a piece of that prompt, which has
    no place in a log.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prompt_differs = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Only errors go on."""
        if "prompt is not a prefix" in str(record.msg):
            self.prompt_differs = True
        return record.levelno >= logging.ERROR


@contextlib.contextmanager
def silence_libraries() -> Iterator[LogFilter]:
    """No bar, warning or log line of the libraries meanwhile, and no telemetry."""
    with contextlib.ExitStack() as stack:
        log_filter = LogFilter()
        for name in list(logging.root.manager.loggerDict):
            if name.partition(".")[0] in _LIBRARIES:
                logging.getLogger(name).addFilter(log_filter)
                stack.callback(logging.getLogger(name).removeFilter, log_filter)
        stack.callback(transformers_logging.set_verbosity, transformers_logging.get_verbosity())
        transformers_logging.set_verbosity_error()  # its loggers come with its models
        if transformers_logging.is_progress_bar_enabled():
            stack.callback(transformers_logging.enable_progress_bar)
        transformers_logging.disable_progress_bar()
        if not datasets.are_progress_bars_disabled():
            stack.callback(datasets.enable_progress_bars)
        datasets.disable_progress_bars()
        # TRL's own bars, of the reference's log-probabilities, ask the environment alone.
        bars = {name: os.environ[name] for name in ("TQDM_DISABLE",) if name in os.environ}
        os.environ["TQDM_DISABLE"] = "1"
        stack.callback(os.environ.update, bars)
        stack.callback(os.environ.pop, "TQDM_DISABLE")
        telemetry = constants.HF_HUB_DISABLE_TELEMETRY
        stack.callback(setattr, constants, "HF_HUB_DISABLE_TELEMETRY", telemetry)
        constants.HF_HUB_DISABLE_TELEMETRY = True
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield log_filter


def _to_json_line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"
