"""Stages of a recipe on whole records: what each learns from, its problem, its finished model.

Each is trained by the gradient loop of `uls` in a directory of the run, and appears there whole
under its name, with a seal: what another run, or somebody, put there is no model of this one. What
a stage begins from is public, or the noised model of a stage before (post-processing).
"""

from __future__ import annotations

import contextlib
import gc
import hmac
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelguard.errors import LabelguardError, ProjectError
from labelguard.storage import files
from labelguard.storage.files import write_atomically
from labelguard.text import Progress
from labelguard_trainer.gradient import loop
from labelguard_trainer.gradient.language import (
    DemonstrationProblem,
    LanguageProblem,
    tokenize_demonstrations,
)
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun
from labelguard_trainer.gradient.model import ModelProblem
from labelguard_trainer.gradient.records import Records
from labelguard_trainer.gradient.rloo import PolicyProblem, RewardFunction
from labelguard_trainer.records.people import Part
from labelguard_trainer.training import models
from labelguard_trainer.training.models import check_weights_complete, shorten_library_errors
from labelguard_trainer.training.reporting import silence_libraries
from labelguard_trainer.training.settings import Kind, StageName, parse_lora
from labelguard_trainer.training.stage_training import StageTraining, tokenize

_STEPS_BETWEEN = 10  # steps between two checkpoints
_TOGETHER = 16  # records that are passed through a model at once
_CHARACTERS = 64  # of a text are read, for each token that a stage takes
# Makes a few bytes of all others, for one stage of one run alone.
Seal = Callable[[bytes], bytes]


@dataclass(frozen=True)
class RecordStage:
    """One stage of a run: it begins from `model`, and looks at `records` of a person in a step."""

    name: StageName
    model: str
    identity: str
    lora: Mapping[str, Any] | None
    config: Mapping[str, Any]
    records: int
    updates: int

    _KINDS: ClassVar[Mapping[StageName, Kind]] = {"sft": "dpo", "reward": "reward", "rl": "dpo"}

    @classmethod
    def of(
        cls, name: StageName, model: str, stage: Mapping[str, Any], records: int, updates: int
    ) -> RecordStage:
        """Return a stage of a recipe that begins from a model; `LabelguardError` if it cannot."""
        lora = parse_lora(stage["lora"]) if stage["lora"] else None
        if lora and lora.get("lora_dropout"):
            raise LabelguardError("LoRA's dropout must be 0 here; leave dropout out")
        given = {key: value for key, value in stage["config"].items() if value is not None}
        with (
            silence_libraries(),
            shorten_library_errors(f"{model} cannot be trained (stage {name})"),
        ):
            identity, fixed = models.identify_and_pin(model, given)
            check_weights_complete(cls._KINDS[name], model, fixed["model_init_kwargs"])
        longest = models.choose_max_length(model, fixed["model_init_kwargs"])
        if not 2 <= fixed["max_length"] <= longest:
            raise LabelguardError(f"max_length of stage {name} must be between 2 and {longest:,}")
        if name == "rl" and fixed["max_completion_length"] >= fixed["max_length"]:
            raise LabelguardError("max_completion_length must be below max_length")
        return cls(name, model, identity, lora, fixed, records, updates)

    @property
    def clip(self) -> float:
        """The norm to which a person's gradient is clipped."""
        return float(self.config["max_grad_norm"])

    def rehearse(self, judge: RewardFunction | None = None) -> None:
        """Compute the gradient of made-up records: raise what is wrong with model and settings.

        They are as many and as long as anybody's in a step, so that memory does not tell of those;
        `judge` is as large as the reward.
        """
        count = min(self.records, _TOGETHER)
        texts = [pa.array(["a " * int(self.config["max_length"])] * count, pa.large_string())] * 3
        some = np.zeros(count, np.intp)

        def reward(prompt: Sequence[int], responses: Sequence[Sequence[int]]) -> Tensor:
            return torch.arange(len(responses), dtype=torch.float32)

        with (
            silence_libraries(),
            shorten_library_errors(f"{self.model} cannot be trained (stage {self.name})"),
        ):
            problem = self.problem(texts, some, np.ones(count, bool), 1, judge or reward)
            problem.bound_gradient_norms(some[:1], np.ones(count))

    def problem(
        self,
        texts: Sequence[pa.Array],
        unit: NDArray[np.intp],
        present: NDArray[np.bool_],
        population: int,
        reward: RewardFunction,
    ) -> ModelProblem:
        """Return the model before its first step, and the records, (n,), that it will learn from.

        Texts are cut to the tokens that a stage takes: none is too long. A record that cannot be
        read (bytes that are no text, a tokenizer that fails) is as one that is null.
        """
        gc.collect()
        tokenizer = models.load_tokenizer(self.model)
        check_vocabulary_fits_model(self.model, tokenizer)
        tokens, readable = read_readable_records(partial(self._tokenize_records, tokenizer), texts)
        rows = np.arange(len(unit))
        records = Records(rows, unit, population, self.records, "mean", present & readable)
        base = StageTraining(
            *(self._KINDS[self.name], self.model, self.identity, self.lora, self.config),
            *(tokenizer, tokens),
        )
        if self.name == "sft":
            return DemonstrationProblem(base, records, updates=self.updates)
        if self.name == "reward":
            return LanguageProblem(base, records, updates=self.updates)
        prompts = tokens["prompt_ids"].to_pylist()
        return PolicyProblem(base, records, prompts, reward, updates=self.updates)

    def _tokenize_records(self, tokenizer: Any, texts: Sequence[pa.Array]) -> pa.Table:
        """Return the tokens of records. PRIVATE, as every error is."""
        limit = int(self.config["max_length"])
        longest = limit * _CHARACTERS
        if self.name == "rl":
            room = limit - int(self.config["max_completion_length"])
            first = tokenizer.bos_token_id
            nothing = [tokenizer.eos_token_id if first is None else first]
            prompts = [text[-longest:] for text in texts[0].to_pylist()]
            written = tokenizer(prompts, verbose=False)["input_ids"]
            return pa.table({"prompt_ids": [ids[-room:] or nothing for ids in written]})
        cut = [
            pa.array([text[:longest] for text in column.to_pylist()], pa.large_string())
            for column in texts
        ]
        if self.name == "sft":
            return tokenize_demonstrations(tokenizer, *cut[:2])
        pairs = pa.table(dict(zip(("prompt", "first", "second"), cut, strict=True)))
        return tokenize("reward", pairs, tokenizer, limit)


def check_vocabulary_fits_model(model: str, tokenizer: Any, **options: Any) -> None:
    """Raise `LabelguardError` for a tokenizer with tokens that its model has no row for.

    `options` are as for `models.load_config`.

    Whoever writes one of them would make training fail, which shows that they did.
    """
    text = models.load_config(model, **options).get_text_config()
    if max(tokenizer.get_vocab().values()) >= text.vocab_size:
        raise LabelguardError(
            f"the tokenizer of {model} has tokens beyond the {text.vocab_size:,} of its model; "
            "take those out, or enlarge the model"
        )


def read_readable_records(
    read: Callable[[Sequence[pa.Array]], pa.Table], texts: Sequence[pa.Array]
) -> tuple[pa.Table, NDArray[np.bool_]]:
    """Return what `read` makes of n records, and which it can read, (n,): of others, of nothing.

    Whatever it raises of somebody's texts would show that they are there. PRIVATE.
    """
    readable = np.ones(len(texts[0]), bool)
    nothing = read([pa.array([""], pa.large_string())] * len(texts))

    def read_or_none(some: Sequence[pa.Array]) -> pa.Table | None:
        try:
            return read(some)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of tokenizers is no Exception
            return None

    if (together := read_or_none(texts)) is not None:
        return together, readable
    each = [
        read_or_none([column.slice(row, 1) for column in texts]) for row in range(len(readable))
    ]
    readable = np.array([one is not None for one in each])
    return pa.concat_tables([nothing if one is None else one for one in each]), readable


class RewardModel:
    """The reward of responses by a model in a directory, or of a hub: a `RewardFunction`.

    With an `identity` (`models.identity`), of a hub it is the very commit that this names.
    Every prompt's responses are passed through it by themselves, in texts.
    """

    def __init__(self, model: str, policy: str, identity: str | None = None) -> None:
        pinned = models.pin_revision(model, identity, {}) if identity else {}
        self._writer = models.load_tokenizer(policy)
        self._reader = models.load_tokenizer(model, **pinned)
        check_vocabulary_fits_model(model, self._reader, **pinned)
        self._limit = models.choose_max_length(model, pinned)
        on_gpu = torch.cuda.is_available()
        with silence_libraries():
            loaded = models.load_model("reward", model, **pinned)
        self._model = loaded.eval().to("cuda" if on_gpu else "cpu")
        self._model.config.get_text_config().pad_token_id = self._reader.pad_token_id

    def __call__(self, prompt: Sequence[int], responses: Sequence[Sequence[int]]) -> Tensor:
        """Return the rewards of responses, (k,), float32."""
        end = self._reader.eos_token or ""
        texts = [
            self._writer.decode(list(prompt), skip_special_tokens=True)
            + self._writer.decode(list(response), skip_special_tokens=True)
            + end
            for response in responses
        ]
        encoded = self._reader(
            *(texts,),
            return_tensors="pt",
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=self._limit,
            verbose=False,
        ).to(self._model.device)
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            rewards: Tensor = self._model(**inputs).logits.squeeze(-1).float()
        return rewards


@dataclass(frozen=True)
class StageRuns:
    """The directory of a run, where stages are trained and finished models wait."""

    directory: Path
    seal: Seal = field(repr=False)
    progress: Progress

    def train(
        self,
        stage: RecordStage,
        part: Part,
        column: str,
        price: Mapping[str, Any],
        reward: Callable[[], RewardFunction],
    ) -> Path:
        """Return the model of a stage, trained on the records of everybody in its part.

        PRIVATE until it is there; what is there is (ε, δ)-private by `accounting.zero_out`, as its
        price says. A run that was killed goes on. `column` has the ids of people.
        """
        if done := self.find_finished(stage.name):
            return done
        run = NoisyRun.from_price(price, stage.clip, len(part.people))
        work = self.directory / f"{stage.name}.steps"
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        prefix = f"{stage.name} {run!r} ".encode() + self._join_earlier_seals(stage.name)
        checkpoints = Checkpoints(work, _STEPS_BETWEEN, lambda data: self.seal(prefix + data))

        def watch(share: float) -> None:
            self.progress(f"training, stage {stage.name}", share)

        with _hide_error_texts(stage.name):
            texts, present = part.read_texts(column)
            problem = stage.problem(texts, part.unit, present, len(part.people), reward())
            loop.train(problem, np.ones(len(part.unit)), run, checkpoints, watch)
            problem.export(self.directory / stage.name)
        write_atomically(self._get_seal_path(stage.name), self._seal_model(stage.name), mode=0o600)
        return self.directory / stage.name

    def find_finished(self, name: StageName) -> Path | None:
        """Return the model of a stage that is done; None before.

        Raises `ProjectError` for one that is not as this run left it.
        """
        if not self._get_seal_path(name).exists():
            return None
        whole = (self.directory / name).is_dir()
        if not whole or not hmac.compare_digest(
            self._get_seal_path(name).read_bytes(), self._seal_model(name)
        ):
            raise ProjectError(
                f"{self.directory / name} is not the model that this run trained; remove it and "
                f"{self._get_seal_path(name)}, and the same command trains the stage anew"
            )
        return self.directory / name

    def _get_seal_path(self, name: StageName) -> Path:
        return self.directory / f"{name}.done"

    def _seal_model(self, name: StageName) -> bytes:
        hashes = files.hash_files(self.directory / name)
        own = f"{name} {json.dumps(hashes, sort_keys=True)}".encode()
        return self.seal(own + self._join_earlier_seals(name))

    def _join_earlier_seals(self, name: StageName) -> bytes:
        """Return the seals of the stages before one, which it may have learned from.

        If one of them is trained anew, those after it are of another run: with a model that learned
        from its first model two looks at the same people would be published.
        """
        order = get_args(StageName)
        notes = map(self._get_seal_path, order[: order.index(name)])
        return b"".join(note.read_bytes() for note in notes if note.exists())


@contextlib.contextmanager
def _hide_error_texts(name: StageName) -> Iterator[None]:
    """Raise `LabelguardError` for whatever a library raises, whose words may hold a record's."""
    try:
        with silence_libraries():
            yield
    except LabelguardError:
        raise
    except Exception:
        raise LabelguardError(
            f"stage {name} stopped at an error, of which nothing is shown: it may hold what "
            "somebody wrote; look for room in memory and on disk; what was charged stays charged, "
            "and the same command goes on from the last checkpoint"
        ) from None
