"""Stages of PROPS with language models: each trains on from the model of the stage before.

Models are kept under names that tell what they were trained on, and appear whole: what is there
is not trained again, and what was interrupted goes on from its last checkpoint. On a CPU the
outcome is the same to the last bit.
"""

from __future__ import annotations

import gc
import hashlib
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from labelguard.learning.learners import Scorer, State
from labelguard.storage import portions
from labelguard.storage.files import fresh_directory, publish_directory, write_atomically
from labelguard.text import Progress
from labelguard_trainer.training import guard
from labelguard_trainer.training.reporting import silence_libraries
from labelguard_trainer.training.runs import last_checkpoint, mark_complete
from labelguard_trainer.training.stage_training import Floats, Rows, StageTraining


class StageLearner:
    """A `Learner` whose `pairs` are the numbers of a training's pairs.

    `directory` is its own: reference.npz, model-STAGE-DIGEST/ and, while it trains, the same with
    `.partial`.
    """

    def __init__(self, training: StageTraining, directory: Path, progress: Progress) -> None:
        self.training = training
        self.directory = directory
        self._progress = progress

    def fit(
        self, pairs: Rows, targets: Floats, probabilities: Floats, init: Scorer | None
    ) -> StageModel:
        """Return the model before, trained by the likelihood of its targets (`losses.forward`).

        Without a pair that tells anything it stays as it was.
        """
        before = init if isinstance(init, StageModel) else None
        stage = before.stage + 1 if before else 1
        digest = _digest(before.digest if before else b"", pairs, targets, probabilities)
        model = StageModel(self, stage, digest)
        if before:
            before.close()
        if not model.path.is_dir():
            learnable = np.isin(pairs, self.training.comparable_pairs)
            noise = targets[learnable], probabilities[learnable]
            self._train(model, before, pairs[learnable], noise)
        return model

    def restore(self, state: State) -> StageModel:
        """Return the model whose state this is; it is loaded when it has to score."""
        return StageModel(self, int(state["stage"]), state["digest"].tobytes())

    @cached_property
    def reference(self) -> Floats | None:
        """The base model's log-probabilities of both sides of every pair, shape (n, 2), of `dpo`.

        Functions of public pairs, computed once for training and scoring in all stages.
        """
        if self.training.kind == "reward":
            return None
        path = self.directory / "reference.npz"
        if not path.exists():
            self._progress("scoring all pairs by the base model", None)
            every = self.training.rows(np.arange(len(self.training.tokens)))
            trainer = self.training.trainer(self.directory, self.training.example)
            with silence_libraries():
                known = trainer.log_probs(every)
            with guard.explain_failed_write(path):
                write_atomically(path, portions.pack_arrays({"log_probs": known}))
        return portions.load_arrays(path)["log_probs"]

    def _train(
        self,
        model: StageModel,
        before: StageModel | None,
        pairs: Rows,
        noise: tuple[Floats, Floats],
    ) -> None:
        work = model.path.with_suffix(".partial")
        start = before.path if before else None
        training = self.training
        rows = training.rows(pairs, self.reference, noise) if len(pairs) else training.example
        gc.collect()  # trainers that were let go are full of cycles
        torch.cuda.empty_cache()
        trainer = training.trainer(work, rows, start)
        if len(pairs):
            trainer.add_callback(_StageCallback(f"stage {model.stage}", self._progress))
            checkpoint = last_checkpoint(work)
            with silence_libraries():
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        with guard.explain_failed_write(self.directory), silence_libraries():
            finished = fresh_directory(work / "finished", mode=0o700)
            trainer.model.save_pretrained(finished)
            publish_directory(finished, model.path)
        shutil.rmtree(work)
        model.reuse_trainer(trainer)


@dataclass(frozen=True, eq=False)
class StageModel:
    """A `Scorer`: the model that a stage left on disk, loaded when it is first asked."""

    learner: StageLearner
    stage: int
    digest: bytes

    @property
    def path(self) -> Path:
        """The directory of the whole model, or its adapters."""
        return self.learner.directory / f"model-{self.stage}-{self.digest.hex()[:16]}"

    def __call__(self, pairs: Rows) -> Floats:
        """Margins of pairs, shape (n,); 0 where the two sides are equal within `max_length`."""
        learner = self.learner
        margins = np.zeros(len(pairs))
        comparable = np.isin(pairs, learner.training.comparable_pairs)
        if comparable.any():
            learner._progress(f"scoring by the model of stage {self.stage}", None)
            with silence_libraries():
                rows = learner.training.rows(pairs[comparable], learner.reference)
                margins[comparable] = self._trainer.margins(rows)
        return margins

    def state(self) -> dict[str, Any]:
        """Return where it is kept; `digest` is of all that it learned from."""
        return {"stage": np.array(self.stage), "digest": np.frombuffer(self.digest, np.uint8)}

    def reuse_trainer(self, trainer: Any) -> None:
        """Score by this trainer, which has the model in memory already."""
        self.__dict__["_trainer"] = trainer

    def close(self) -> None:
        """Let go of what is in memory; asked again, it is loaded again."""
        self.__dict__.pop("_trainer", None)

    def export(self, directory: Path) -> Path:
        """Write what `from_pretrained` reads into `directory`: adapters merged, the tokenizer."""
        return self.learner.training.export(self.path, directory)

    @cached_property
    def _trainer(self) -> Any:
        training = self.learner.training
        return training.trainer(self.learner.directory, training.example, self.path)


class _StageCallback(TrainerCallback):
    """Progress, and the mark of complete checkpoints."""

    def __init__(self, what: str, progress: Progress) -> None:
        self._what = what
        self._progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One step further."""
        self._progress(f"training {self._what}", state.global_step / state.max_steps)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is all there."""
        mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def _digest(before: bytes, *columns: Rows | Floats) -> bytes:
    """SHA-256 of what a model learns from: the model before, and its rows."""
    digest = hashlib.sha256(before)
    for column in columns:
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()
