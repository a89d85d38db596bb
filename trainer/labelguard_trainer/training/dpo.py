"""DPO that honours the noise of every row of a release: TRL's trainer with a loss of our own.

    from labelguard_trainer import DPOConfig, DPOTrainer
    trainer = DPOTrainer(model, DPOConfig("out"), train_dataset=labelguard.load(path, "datasets"))
    trainer.train()

DPO (Rafailov et al. 2023, eq. 7) is a logistic loss of the margin
z = β[log π(chosen)/π_ref(chosen) − log π(rejected)/π_ref(rejected)]; here it is one of `losses`
(props eq. 9, aup-rlhf B.3) in place of it, with each row's own probabilities. With
`loss_type=["ipo"]` it is IPO's square, of log-ratios that are means over tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import trl
from accelerate.utils import is_peft_model
from numpy.typing import NDArray
from torch import Tensor
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.utils import get_config_model_id

from labelguard.errors import LabelguardError
from labelguard_trainer import losses
from labelguard_trainer.training import guard
from labelguard_trainer.training.noisy import BatchNoise, NoisyConfig, NoisyTraining, score_rows

REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")


@dataclass
class DPOConfig(NoisyConfig, trl.DPOConfig):
    """TRL's configuration, and:

    - `preference_loss`: see `rows.PreferenceLoss`; by default what the release's card says.
    - `non_private`: rows that say nothing of their noise are raw labels, and are taken as they are.

    bf16 is on by default where the device has it, and off elsewhere.
    """


class DPOTrainer(NoisyTraining, trl.DPOTrainer):
    """TRL's `DPOTrainer` for releases: its arguments, by name after `args`, a `DPOConfig`.

    Data sets are releases (`labelguard.load(path, "datasets")`), or prepared: with `COLUMNS` of
    `rows`, already tokenized (`prompt_ids`, `chosen_ids`, `rejected_ids`), or with the reference's
    log-probabilities (`ref_chosen_logps`, `ref_rejected_logps`), each taken as it is. A model in
    memory is its own reference: its log-probabilities are computed before the first step.

    Raises `LabelguardError` for what `guard` refuses, raw labels, and a batch without its noise.
    """

    _tokens = "prompt_ids"
    _config = DPOConfig
    _check_architecture = staticmethod(guard.check_language_model)

    def _check_options(self, model: Any, args: Any, train: Any, options: dict[str, Any]) -> Any:
        self._given_reference = set(REFERENCE) <= set(train.column_names)
        is_own_reference = options.get("ref_model") is None and is_in_memory_only(model, options)
        if self._given_reference or is_own_reference:
            args.precompute_ref_log_probs = True
        guard.check_dpo_settings(args, options)
        return options

    def _collator(self, tokenizer: Any, args: Any) -> Any:
        return DataCollatorForPreference(
            pad_token_id=tokenizer.pad_token_id,
            max_length=args.max_length,
            truncation_mode=args.truncation_mode,
            pad_to_multiple_of=args.pad_to_multiple_of,
        )

    def margins(self, dataset: Any) -> NDArray[np.float64]:
        """β(log-ratio of chosen − of rejected) of every row, shape (n,), in the data set's order.

        No row is left out: one whose sides are equal after truncation has margin 0. Raises
        `LabelguardError` if the reference is not known any more.
        """
        dataset = self._tokenize_all(dataset)
        log_ratios = self.log_probs(dataset) - self._compute_reference_log_probs(dataset)
        return np.asarray(self.beta * (log_ratios[:, 0] - log_ratios[:, 1]))

    def prepare_for_scoring(self, dataset: Any) -> Any:
        """Return all rows of a data set as `margins` takes them after training; call it before.

        Where training leaves no reference, they have its log-probabilities.
        """
        dataset = super().prepare_for_scoring(dataset)
        if not self._is_own_reference or set(REFERENCE) <= set(dataset.column_names):
            return dataset
        for name, values in zip(REFERENCE, self.log_probs(dataset).T, strict=True):
            dataset = dataset.add_column(name, values)
        return dataset

    def log_probs(self, dataset: Any) -> NDArray[np.float64]:
        """Return the model's log-probabilities of chosen and rejected, shape (n, 2), no gradient.

        Before the first step they are those of a reference that is the model itself.
        """

        def compute_policy_log_probs(inputs: dict[str, Any]) -> Tensor:
            return torch.stack(self._log_probs(self.model, inputs)[0].chunk(2), dim=1)

        return score_rows(
            self, self._tokenize_all(dataset), self.data_collator.texts, compute_policy_log_probs
        )

    def compute_ref_log_probs(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Return the reference's log-probabilities of a batch's sides: two tensors of shape
        (n,).
        """
        return super().compute_ref_log_probs(model, BatchNoise.split(inputs)[1])

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Tensor:
        """Return the weighted mean of one of `losses` over a micro-batch."""
        if return_outputs:
            raise LabelguardError("no logits are computed: use margins() in place of predict()")
        noise, inputs = BatchNoise.split(inputs)
        log_probs, outputs = self._log_probs(model, inputs)
        log_ratios = log_probs - torch.cat(self._get_batch_reference(inputs))
        rewards = self.beta * log_ratios
        if self.loss_types == ["ipo"]:
            loss_of_rows: losses.Loss = partial(losses.ipo, beta=self.beta)
            sides = (log_ratios / inputs["completion_mask"].sum(1).clamp(min=1)).chunk(2)
        else:
            loss_of_rows, sides = self.preference_loss, rewards.chunk(2)
        each = noise.weigh(loss_of_rows, sides[0] - sides[1])
        loss = each.mean()
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * outputs.aux_loss
        self._record_rows(noise, rewards.detach(), log_probs.detach())
        if self._mode == "eval" and not self.aux_loss_enabled:
            self._record_means(loss=each.detach())
        self._record_tokens(inputs, outputs)
        return loss

    def _log_probs(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Any]:
        """Log-probabilities of a batch's 2n completions (chosen, then rejected), and all else."""
        mask = inputs["completion_mask"]
        router = {"output_router_logits": True} if self.aux_loss_enabled else {}
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            labels=inputs["input_ids"].masked_fill(mask == 0, -100),
            fused_lm_head=True,
            use_cache=False,
            **router,
        )
        return _drop_virtual_tokens(outputs.log_probs, mask).sum(dim=1), outputs

    def _get_batch_reference(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the reference's log-probabilities of a batch, as TRL has them."""
        if not self.precompute_ref_logps:
            chosen, rejected = super().compute_ref_log_probs(self.ref_model or self.model, inputs)
            return chosen, rejected
        if not set(REFERENCE) <= set(inputs):
            raise LabelguardError(f"a batch has no {', '.join(REFERENCE)}: a collator dropped them")
        return inputs[REFERENCE[0]], inputs[REFERENCE[1]]

    def _compute_reference_log_probs(self, dataset: Any) -> NDArray[np.float64]:
        """As `log_probs`, of the reference."""
        if set(REFERENCE) <= set(dataset.column_names):
            return np.stack([np.asarray(dataset[name], np.float64) for name in REFERENCE], axis=1)
        if self._is_own_reference:
            raise LabelguardError(
                "the reference's log-probabilities of these rows are not known: give them as "
                f"columns {', '.join(REFERENCE)}, or give the trainer a ref_model"
            )
        reference = super().compute_ref_log_probs

        def score(inputs: dict[str, Any]) -> Tensor:
            return torch.stack(reference(self.ref_model or self.model, inputs), dim=1)

        return score_rows(self, dataset, self.data_collator.texts, score)

    @property
    def _is_own_reference(self) -> bool:
        """True if the model is its own reference until the first step, and no other is kept."""
        return self.ref_model is None and not is_peft_model(self.model)

    def _record_rows(self, noise: BatchNoise, rewards: Tensor, log_probs: Tensor) -> None:
        chosen, rejected = rewards.chunk(2)
        rows = {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/margins": chosen - rejected,
            "agreement": noise.compare_signs_with_targets(chosen - rejected),
            "logps/chosen": log_probs.chunk(2)[0],
            "logps/rejected": log_probs.chunk(2)[1],
        }
        self._record_means(**rows)

    def _record_tokens(self, inputs: dict[str, Any], outputs: Any) -> None:
        """Metrics that are sums over tokens: the entropy of completions, tokens seen so far."""
        mask = inputs["completion_mask"]
        entropy = (_drop_virtual_tokens(outputs.entropy.detach(), mask) * mask[:, 1:]).sum()
        sums = torch.stack([entropy, mask[:, 1:].sum(), inputs["attention_mask"].sum()])[None]
        entropy, completions, tokens = self.accelerator.gather(sums).sum(0).tolist()
        self._metrics[self._mode]["entropy"].append(entropy / max(completions, 1))
        self._count_tokens(tokens)

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        if set(REFERENCE) <= set(dataset.column_names):
            return dataset
        if self._given_reference and self._is_own_reference:
            raise LabelguardError(
                f"the {name} data has no {', '.join(REFERENCE)}, which the train data has: the "
                "reference is not here to compute them"
            )
        return super()._precompute_ref_logps(dataset, name, batch_size)


def is_in_memory_only(model: Any, options: Mapping[str, Any]) -> bool:
    """Return True if a model is in memory only, and whole: TRL finds no reference to load beside
    it.
    """
    if isinstance(model, str) or get_config_model_id(model.config):
        return False
    return options.get("peft_config") is None and not is_peft_model(model)


def _drop_virtual_tokens(values: Tensor, completion_mask: Tensor) -> Tensor:
    """Of the real tokens but the first: prompt-learning adapters put virtual ones before them."""
    return values[:, -(completion_mask.size(1) - 1) :]
