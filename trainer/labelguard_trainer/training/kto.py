"""KTO that honours the noise of every row of a release: TRL's trainer with weights of our own.

    from labelguard_trainer import KTOConfig, KTOTrainer
    trainer = KTOTrainer(model, KTOConfig("out"), train_dataset=labelguard.load(path, "datasets"))

A pair gives two answers, one desirable, one not. A flip turns both, and the losses of an answer
add up to 1 (see `losses.kto`): the unbiased loss is TRL's with a weight for each row, and a
constant, so that equal γ change nothing but its scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import trl
from torch import Tensor
from trl.data_utils import unpair_preference_dataset
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

from labelguard.errors import LabelguardError
from labelguard_trainer import losses
from labelguard_trainer.training import guard
from labelguard_trainer.training.dpo import is_in_memory_only
from labelguard_trainer.training.noisy import BatchNoise, NoisyConfig, NoisyTraining
from labelguard_trainer.training.rows import add_loss_columns


@dataclass
class KTOConfig(NoisyConfig, trl.KTOConfig):
    """TRL's configuration, and `preference_loss` and `non_private` as in `DPOConfig`.

    KTO has no likelihood: `auto` is the unbiased loss, and `forward` is refused.
    """


class KTOTrainer(NoisyTraining, trl.KTOTrainer):
    """TRL's `KTOTrainer` for releases: its arguments, by name after `args`, a `KTOConfig`.

    Data sets are releases (`labelguard.load(path, "datasets")`). Their answers are shuffled, by
    `args.seed`: rows of a release are sorted by item, and KTO compares answers with the prompts of
    their neighbours. A model in memory is its own reference, as in `DPOTrainer`.

    Raises `LabelguardError` for what `guard` refuses, raw labels, and a batch without its noise.
    """

    desirable_weight: Any
    undesirable_weight: Any
    _tokens = "completion_ids"
    _config = KTOConfig
    _check_architecture = staticmethod(guard.check_language_model)

    def _check_options(self, model: Any, args: Any, train: Any, options: dict[str, Any]) -> Any:
        guard.refuse_if_any_holds(
            {
                "preference_loss forward": (
                    args.preference_loss == "forward",
                    "KTO has no likelihood; robust, its unbiased loss, is the default",
                )
            }
        )
        if options.get("ref_model") is None and is_in_memory_only(model, options):
            args.precompute_ref_log_probs = True
        return options

    def _collator(self, tokenizer: Any, args: Any) -> Any:
        return DataCollatorForUnpairedPreference(
            pad_token_id=tokenizer.pad_token_id,
            max_length=args.max_length,
            pad_to_multiple_of=args.pad_to_multiple_of,
        )

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, name: str) -> Any:
        if self._tokens in dataset.column_names:
            return dataset
        guard.check_rows(dataset, args)
        guard.check_chat_template(dataset, processing_class)
        answers = 2 * len(dataset)
        dataset = add_loss_columns(dataset, args.preference_loss, non_private=args.non_private)
        dataset = unpair_preference_dataset(dataset).shuffle(seed=args.seed)
        dataset = trl.KTOTrainer._prepare_dataset(self, dataset, processing_class, args, name)
        if name == "train":
            self.left_out = answers - len(dataset)
        return dataset

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Tensor:
        """Return TRL's loss of a micro-batch, each row weighed, and what noise adds to it."""
        if return_outputs:
            raise LabelguardError("no logits are computed")
        noise, inputs = BatchNoise.split(inputs)
        desirable = inputs["label"].bool()
        weights = self.desirable_weight, self.undesirable_weight
        own, other = (torch.where(desirable, *pair) for pair in (weights, weights[::-1]))
        given, turned = losses.compute_unbiased_targets(noise.target, noise.flip_probability)
        each = noise.weight * (given * own - turned * other)
        self.desirable_weight, self.undesirable_weight = each[desirable], each[~desirable]
        try:
            loss: Tensor = super()._compute_loss(model, inputs, return_outputs)
        finally:
            self.desirable_weight, self.undesirable_weight = weights
        constant: Tensor = (noise.weight * turned * other).mean()
        return loss + constant
