"""Shared by all stages of a PROPS run with a language model: base model, settings, tokens.

Pairs become token ids in large batches and once, as TRL's trainers would make them of each row. A
text ends with the end-of-sequence token; a chat is written by the tokenizer's template.

The reference of `dpo` is the base model in every stage, and never the model of the stage before
(props, algorithm 1, aligns M_0).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from datasets import Dataset
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, load_peft_weights, set_peft_model_state_dict
from transformers import PrinterCallback

from labelguard.errors import LabelguardError, ProjectError
from labelguard.learning.columns import content_column
from labelguard.storage import files
from labelguard.storage.files import publish_directory
from labelguard_trainer import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from labelguard_trainer.training import guard, models
from labelguard_trainer.training.dpo import REFERENCE
from labelguard_trainer.training.models import check_weights_complete, shorten_library_errors
from labelguard_trainer.training.reporting import silence_libraries
from labelguard_trainer.training.rows import FLIP, TARGET, WEIGHT
from labelguard_trainer.training.settings import Kind

Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.intp]

TRAINERS = {"dpo": (DPOConfig, DPOTrainer), "reward": (RewardConfig, RewardTrainer)}
_TASKS = {"dpo": "CAUSAL_LM", "reward": "SEQ_CLS"}
_DEFAULTS = {
    "per_device_eval_batch_size": 16,  # of scoring, which keeps no gradients
    "report_to": "none",
    "save_total_limit": 2,
    "disable_tqdm": True,
}


@dataclass(frozen=True, eq=False, repr=False)
class StageTraining:
    """A base model by its id or path, how every stage is trained, and n distinct pairs.

    `identity` is the base model's (`models.identity`), `lora` are arguments of `peft.LoraConfig`,
    `settings` fields of the trainer's configuration, and `tokens` the pairs as `tokenize`
    makes them.
    """

    kind: Kind
    model: str
    identity: str
    lora: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    tokenizer: Any
    tokens: pa.Table

    @classmethod
    def of(
        cls,
        kind: Kind,
        model: str,
        identity: str,
        lora: Mapping[str, Any] | None,
        settings: Mapping[str, Any],
        pairs: pa.Table,
    ) -> StageTraining:
        """Raise `LabelguardError` unless model, settings and pairs can be trained together."""
        with (
            silence_libraries(),
            shorten_library_errors("model and settings of training cannot be used"),
        ):
            arguments = _build_trainer_config(kind, settings, Path("unused"))
            tokenizer = guard.load_tokenizer_of_model(model, arguments)
            if is_chat(pairs) and not tokenizer.chat_template:
                raise LabelguardError(
                    f"the pairs are chats, and the tokenizer of {model} has no chat template"
                )
            check_weights_complete(kind, model, arguments.model_init_kwargs or {})
            tokens = tokenize(kind, pairs, tokenizer, arguments.max_length)
            training = cls(kind, model, identity, lora, settings, tokenizer, tokens)
            with tempfile.TemporaryDirectory() as directory:
                _check_tokenizer_publishable(model, tokenizer, Path(directory, "tokenizer"))
                training.trainer(Path(directory), training.example)
        return training

    @cached_property
    def comparable_pairs(self) -> Rows:
        """The pairs whose sides differ within `max_length`, ascending.

        Of the others nothing can be learned or said. Raises `LabelguardError` if there is no other.
        """
        every = np.arange(len(self.tokens))
        dataset = Dataset(self.tokens.append_column("pair", pa.array(every)))
        with silence_libraries():
            arguments = _build_trainer_config(self.kind, self.settings, Path("unused"))
            comparable = guard.drop_equal_sides(dataset, arguments, len(every), "input")
        return np.asarray(comparable["pair"], np.intp)

    def trainer(self, directory: Path, dataset: Dataset, weights: Path | None = None) -> Any:
        """Return a trainer on `dataset` (see `rows`) that works in `directory`.

        It starts from the base model, or from the model or adapters saved in `weights`.
        """
        start = self.model if weights is None or self.lora else str(weights)
        if start == self.model:
            self._check_base()
        lora = build_lora_config(self.kind, self.lora) if self.lora else None
        with silence_libraries():
            trainer = TRAINERS[self.kind][1](
                start,
                _build_trainer_config(self.kind, self.settings, directory),
                train_dataset=dataset,
                processing_class=self.tokenizer,
                peft_config=lora,
            )
            if weights is not None and lora:
                set_peft_model_state_dict(trainer.model, load_peft_weights(str(weights)))
        trainer.remove_callback(PrinterCallback)
        return trainer

    def export(self, weights: Path, directory: Path) -> Path:
        """Write what `from_pretrained` reads: the model of `weights`, whole, and its tokenizer.

        `directory` appears whole, or not at all.
        """
        merged = self.merge_adapters(weights) if self.lora else None
        partial = directory.with_name(f"{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with guard.explain_failed_write(directory), silence_libraries():
                if merged is None:
                    shutil.copytree(weights, partial)
                else:
                    merged.save_pretrained(partial)
                self.tokenizer.save_pretrained(partial)
            self._check_base()
            with guard.explain_failed_write(directory):
                publish_directory(partial, directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return directory

    def merge_adapters(self, weights: Path) -> Any:
        """Return the base model with saved adapters merged into it."""
        base = self.base_model()
        with silence_libraries():
            return PeftModel.from_pretrained(base, str(weights)).merge_and_unload()

    def base_model(self) -> Any:
        """Return the base model, newly loaded; it pads with the tokenizer's token."""
        self._check_base()
        with silence_libraries():
            base = models.load_model(self.kind, self.model, **self._model_init_options)
        base.config.get_text_config().pad_token_id = self.tokenizer.pad_token_id
        return base

    @property
    def _model_init_options(self) -> Mapping[str, Any]:
        return self.settings.get("model_init_kwargs") or {}

    def _check_base(self) -> None:
        """Raise `LabelguardError` if the base model is not the one that the card will name."""
        revision = self._model_init_options.get("revision")
        models.check_unchanged(self.model, self.identity, revision=revision)

    def rows(
        self,
        pairs: Rows,
        reference: Floats | None = None,
        noise: tuple[Floats, Floats] | None = None,
    ) -> Dataset:
        """Pairs by their numbers as a prepared data set, see `DPOTrainer`.

        `reference`, shape (n, 2), has the log-probabilities of all pairs' sides, for `dpo`;
        `noise` the targets and flip probabilities of these, to train on. To score it needs none.
        """
        table = self.tokens.take(pa.array(pairs))
        target, flip = noise or (np.ones(len(pairs)), np.zeros(len(pairs)))
        columns = {TARGET: target, FLIP: flip, WEIGHT: np.ones(len(pairs))}
        if self.kind == "dpo":
            known = np.zeros((len(self.tokens), 2)) if reference is None else reference
            columns |= dict(zip(REFERENCE, known[pairs].T, strict=True))
        for name, values in columns.items():
            table = table.append_column(name, pa.array(values))
        return Dataset(table)

    @property
    def example(self) -> Dataset:
        """One pair, for trainers that only score: they want something to train on."""
        return self.rows(self.comparable_pairs[:1])


def _check_tokenizer_publishable(model: str, tokenizer: Any, directory: Path) -> None:
    """Raise `LabelguardError` if a release may not hold a tokenizer's files."""
    tokenizer.save_pretrained(directory)
    try:
        files.hash_files(directory)
    except ProjectError as error:
        raise LabelguardError(
            f"the tokenizer of {model} cannot be published: {error}; rename it there"
        ) from None


def _build_trainer_config(kind: Kind, settings: Mapping[str, Any], directory: Path) -> Any:
    return TRAINERS[kind][0](output_dir=str(directory), **{**_DEFAULTS, **settings})


def build_lora_config(kind: Kind, lora: Mapping[str, Any], **more: Any) -> LoraConfig:
    """Low-rank adapters of a kind of model."""
    return LoraConfig(task_type=_TASKS[kind], **lora, **more)


TokenIds: TypeAlias = list[int]

_BATCH = 1 << 10
_IDS = pa.list_(pa.int64())  # a response may be empty, and its type must still be known
_SCHEMAS = {
    "dpo": pa.schema([("prompt_ids", _IDS), ("chosen_ids", _IDS), ("rejected_ids", _IDS)]),
    "reward": pa.schema([("chosen_ids", _IDS), ("rejected_ids", _IDS)]),
}


def is_chat(pairs: pa.Table) -> bool:
    """Return True if the prompts and responses of `pairs` are chats, and not texts."""
    return not pa.types.is_large_string(content_column(pairs, "prompt", parts=False).type)


def tokenize(kind: Kind, pairs: pa.Table, tokenizer: Any, limit: int | None = None) -> pa.Table:
    """Token ids of pairs with columns prompt, first and second, in their order.

    For `dpo` prompt_ids, chosen_ids and rejected_ids: the prompt ends where either side parts from
    it, and batches are cut when they are made. For `reward` chosen_ids and rejected_ids, prompt
    included, and cut at `limit` here: TRL would leave longer rows out. `chosen` is the first side.
    """
    columns = [content_column(pairs, name, parts=False) for name in ("prompt", "first", "second")]
    tables = []
    for at in range(0, pairs.num_rows, _BATCH):
        prompt, first, second = (column.slice(at, _BATCH) for column in columns)
        if kind == "dpo":
            rows = _tokenize_for_dpo(tokenizer, prompt, first, second)
        else:
            rows = _tokenize_for_reward(tokenizer, prompt, first, second, limit)
        tables.append(pa.Table.from_pylist(list(rows), _SCHEMAS[kind]))
    return pa.concat_tables(tables)


def _tokenize_for_dpo(
    tokenizer: Any, prompt: pa.Array, first: pa.Array, second: pa.Array
) -> Iterator[dict[str, TokenIds]]:
    prompts = token_ids(tokenizer, prompt.to_pylist(), add_generation_prompt=True)
    sides = (_tokenize_with_prompt(tokenizer, prompt, side) for side in (first, second))
    for alone, chosen, rejected in zip(prompts, *sides, strict=True):
        together = zip(alone, chosen, rejected, strict=False)
        border = sum(1 for _ in takewhile(lambda tokens: len({*tokens}) == 1, together))
        yield {
            "prompt_ids": chosen[:border],
            "chosen_ids": chosen[border:],
            "rejected_ids": rejected[border:],
        }


def _tokenize_for_reward(
    tokenizer: Any, prompt: pa.Array, first: pa.Array, second: pa.Array, limit: int | None
) -> Iterator[dict[str, TokenIds]]:
    sides = (_tokenize_with_prompt(tokenizer, prompt, side) for side in (first, second))
    for chosen, rejected in zip(*sides, strict=True):
        yield {"chosen_ids": chosen[:limit], "rejected_ids": rejected[:limit]}


def _tokenize_with_prompt(tokenizer: Any, prompt: pa.Array, response: pa.Array) -> list[TokenIds]:
    together = zip(prompt.to_pylist(), response.to_pylist(), strict=True)
    if not pa.types.is_large_string(prompt.type):
        return token_ids(tokenizer, [question + answer for question, answer in together])
    end = tokenizer.eos_token or ""
    texts = [question + answer.removesuffix(end) + end for question, answer in together]
    return token_ids(tokenizer, texts)


def token_ids(tokenizer: Any, contents: list[Any], **template: Any) -> list[TokenIds]:
    """Return the tokens of texts, or of chats, all of one kind; `template` is of chats alone."""
    if isinstance(contents[0], str):
        ids: list[TokenIds] = tokenizer(contents)["input_ids"]
        return ids
    written = tokenizer.apply_chat_template(
        contents, tokenize=True, return_dict=True, padding=False, **template
    )
    chats: list[TokenIds] = written["input_ids"]
    return chats
