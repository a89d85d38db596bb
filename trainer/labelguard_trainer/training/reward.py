"""Reward models that honour the noise of every row of a release: TRL's trainer, losses of ours.

    from labelguard_trainer import RewardConfig, RewardTrainer
    trainer = RewardTrainer(model, RewardConfig("out"), train_dataset=lg.load(path, "datasets"))
    trainer.train()
    trainer.save_model()  # AutoModelForSequenceClassification.from_pretrained("out")

The margin of a pair is r(prompt, chosen) − r(prompt, rejected) (Bradley and Terry; Ouyang et al.
2022, eq. 1), its loss one of `losses` with the row's own probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import trl
from accelerate.utils import is_peft_model
from numpy.typing import NDArray
from torch import Tensor
from trl.trainer.reward_trainer import DataCollatorForPreference

from labelguard_trainer.training import guard
from labelguard_trainer.training.noisy import BatchNoise, NoisyConfig, NoisyTraining, score_rows

HEAD = "score"


@dataclass
class RewardConfig(NoisyConfig, trl.RewardConfig):
    """TRL's configuration, and:

    - `preference_loss`, `non_private`: as in `DPOConfig`.

    bf16 is on by default where the device has it, and off elsewhere.
    """


class RewardTrainer(NoisyTraining, trl.RewardTrainer):
    """TRL's `RewardTrainer` for releases: its arguments, by name after `args`, a `RewardConfig`.

    Data sets are releases (`labelguard.load(path, "datasets")`), or prepared: with `COLUMNS` of
    `rows`, or already tokenized (`chosen_ids`, `rejected_ids`, prompts included). With a
    `peft_config` the head is trained whole beside the adapter.

    Raises `LabelguardError` for what `guard` refuses, raw labels, and a batch without its noise.
    """

    _tokens = "chosen_ids"
    _config = RewardConfig
    _check_architecture = staticmethod(guard.check_reward_model)

    def _check_options(self, model: Any, args: Any, train: Any, options: dict[str, Any]) -> Any:
        refused = args.pad_token is not None, "set it on the tokenizer that you pass"
        guard.refuse_if_any_holds({"pad_token": refused})
        return {**options, "peft_config": _include_head_in_training(options.get("peft_config"))}

    def _collator(self, tokenizer: Any, args: Any) -> Any:
        return DataCollatorForPreference(
            pad_token_id=tokenizer.pad_token_id, pad_to_multiple_of=args.pad_to_multiple_of
        )

    def margins(self, dataset: Any) -> NDArray[np.float64]:
        """r(chosen) − r(rejected) of every row, shape (n,), in the data set's order.

        No row is left out: one that is longer than `max_length` is cut there.
        """
        limit = self.args.max_length

        def collate(examples: list[dict[str, Any]]) -> Any:
            sides = ("chosen_ids", "rejected_ids")
            cut = [{side: row[side][:limit] for side in sides} for row in examples]
            return self.data_collator.texts(cut)

        def score(inputs: dict[str, Any]) -> Tensor:
            chosen, rejected = self._rewards(self.model, inputs)[0].float().chunk(2)
            return chosen - rejected

        return score_rows(self, self._tokenize_all(dataset), collate, score)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """A directory that `AutoModelForSequenceClassification.from_pretrained` loads.

        An adapter is merged into its model; in checkpoints (`_internal_call`), and where weights
        are sharded over processes, it is saved as it is.
        """
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if _internal_call or sharded or not is_peft_model(self.model):
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            directory = output_dir or self.args.output_dir
            whole = deepcopy(self.accelerator.unwrap_model(self.model))
            whole.merge_and_unload().save_pretrained(directory)
            self.processing_class.save_pretrained(directory)

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the weighted mean of one of `losses` over a micro-batch."""
        noise, inputs = BatchNoise.split(inputs)
        rewards, outputs = self._rewards(model, inputs)
        chosen, rejected = rewards.chunk(2)
        each = noise.weigh(self.preference_loss, chosen - rejected)
        if self.args.center_rewards_coefficient is not None:
            each = each + self.args.center_rewards_coefficient * (chosen + rejected) ** 2
        loss = each.mean()
        self._record_rewards(noise, inputs, chosen.detach(), rejected.detach())
        if self._mode == "eval":
            self._record_means(loss=each.detach())
        return (loss, outputs) if return_outputs else loss

    def _rewards(self, model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Any]:
        """Return the rewards of a batch's 2n texts (chosen, then rejected)."""
        outputs = model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
        )
        return outputs.logits.squeeze(-1), outputs

    def _record_rewards(
        self, noise: BatchNoise, inputs: Mapping[str, Any], chosen: Tensor, rejected: Tensor
    ) -> None:
        margin = chosen - rejected
        agreement = noise.compare_signs_with_targets(margin)
        self._record_means(chosen=chosen, rejected=rejected, margin=margin, agreement=agreement)
        tokens = self.accelerator.gather(inputs["attention_mask"].sum()).sum()
        self._count_tokens(tokens)


def _include_head_in_training(peft_config: Any) -> Any:
    """Return a copy that trains the head too: a new one would stay as it was drawn."""
    if peft_config is None or HEAD in (peft_config.modules_to_save or ()):
        return peft_config
    peft_config = copy(peft_config)
    peft_config.modules_to_save = [*(peft_config.modules_to_save or ()), HEAD]
    return peft_config
