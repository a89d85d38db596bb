"""Policy optimization as a `Problem`: REINFORCE with the advantage of leaving one out (RLOO).

Of each prompt of a person the policy writes k responses, y_1 … y_k, whose rewards are

    R_i = r(x, y_i) − β (log π(y_i|x) − log π_start(y_i|x)),    A_i = R_i − mean of the other R_j,

and the loss is −1/k Σ min(ρ_i A_i, clip(ρ_i, 1 ± ⅕) A_i), ρ_i = π/π_drawn(y_i|x) (Ahmadian et al.
2024, eq. 7; the clip of Schulman et al. 2017, eq. 7, which is of no effect in the first update).

Nothing of a prompt's loss depends on another prompt, or on who else is in the cohort: no reward is
normalized over a batch, there is no value model, and each prompt has coins of its own. Responses
are drawn once for a cohort: further updates of it are further looks at the same people, which
`accounting.zero_out` prices (dp-alignment-rl, section 4: T_PPO).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from labelguard.keys import keyring
from labelguard_trainer.gradient.loop import SECRET_BYTES
from labelguard_trainer.gradient.model import Floats, Indices, ModelProblem
from labelguard_trainer.gradient.records import Records, StepRecords
from labelguard_trainer.training.stage_training import StageTraining

# The rewards of responses to a prompt, (k,), by their tokens.
RewardFunction: TypeAlias = Callable[[Sequence[int], Sequence[Sequence[int]]], Tensor]

_CLIP = 0.2


@dataclass
class Drawn:
    """The k responses that were drawn to a prompt, (k, length), and what they are worth, (k,)."""

    ids: Tensor
    real: Tensor
    response: Tensor
    # log π of the policy that drew them, and A; before the first update unknown
    judged: tuple[Tensor, Tensor] | None = None


class PolicyProblem(ModelProblem):
    """A `ModelProblem` on prompts, given as their tokens; see the module.

    Of the settings it reads `beta`, `num_generations` and `max_completion_length` too.
    """

    def __init__(
        self,
        base: StageTraining,
        records: Records,
        prompts: Sequence[Sequence[int]],
        reward: RewardFunction,
        *,
        updates: int = 1,
    ) -> None:
        super().__init__(base, records, updates=updates)
        self._prompts, self._reward = prompts, reward
        self._beta = float(self._settings["beta"])
        self._count = int(self._settings["num_generations"])
        self._longest = int(self._settings["max_completion_length"])
        self._start = deepcopy(self._model) if base.lora is None else None
        self._secret, self._drawn = b"", dict[int, Drawn]()

    def _gradients(self, units: Indices, labels: Floats) -> Iterator[Tensor]:
        if self._steps % self._updates == 0:  # a new cohort
            self._secret, self._drawn = self._make_secret(), {}
        return super()._gradients(units, labels)

    def _make_secret(self) -> bytes:
        return keyring.random_bytes(SECRET_BYTES)

    def _loss(self, step: StepRecords, part: slice, labels: Floats) -> Tensor:
        each = [
            weight * self._loss_of_prompt(row)
            for row, weight in zip(step.rows[part].tolist(), step.weights[part], strict=True)
        ]
        return torch.stack(each).sum()

    def _loss_of_prompt(self, row: int) -> Tensor:
        if row not in self._drawn:
            self._drawn[row] = self._draw_responses(row)
        drawn = self._drawn[row]
        log_probs = self._compute_log_probs_of_responses(self._model, drawn)
        if drawn.judged is None:
            before = log_probs.detach()
            drawn.judged = before, compare_with_others(self._penalize_rewards(row, drawn, before))
        before, advantage = drawn.judged
        ratio = (log_probs - before).clamp(-20, 20).exp()
        clipped = ratio.clamp(1 - _CLIP, 1 + _CLIP)
        return -torch.minimum(ratio * advantage, clipped * advantage).mean()

    def _penalize_rewards(self, row: int, drawn: Drawn, log_probs: Tensor) -> Tensor:
        """Return R, (k,)."""
        with torch.no_grad():
            if self._start is None:
                with self._disable_adapters():
                    start = self._compute_log_probs_of_responses(self._model, drawn)
            else:
                start = self._compute_log_probs_of_responses(self._start, drawn)
            width = len(self._prompts[row])
            written = [
                ids[width:][real[width:]].tolist()
                for ids, real in zip(drawn.ids, drawn.real, strict=True)
            ]
            rewards = self._reward(self._prompts[row], written).to(self._device)
        return rewards - self._beta * (log_probs - start)

    def _compute_log_probs_of_responses(self, model: Any, drawn: Drawn) -> Tensor:
        return self._token_log_probs(model, drawn.ids, drawn.real, drawn.response).sum(1)

    def _draw_responses(self, row: int) -> Drawn:
        """Draw responses to a prompt, by coins that are its own: those of nobody else move them."""
        key = hmac.digest(self._secret, row.to_bytes(8, "big"), "sha256")
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        words = np.frombuffer(stream.update(bytes(8 * self._longest * self._count)), "<u8")
        uniform = torch.from_numpy(words.astype(np.float64) * 2.0**-64).to(self._device)
        prompt = torch.tensor(self._prompts[row], device=self._device).expand(self._count, -1)
        response = self._sample(prompt, uniform.view(self._longest, self._count))
        end = self.base.tokenizer.eos_token_id
        ended = (response == end).long().cumsum(1)
        ended -= (response == end).long()  # the end itself belongs to the response
        real = torch.cat([torch.ones_like(prompt, dtype=torch.bool), ended == 0], 1)
        ids = torch.cat([prompt, response], 1)
        ids = ids.masked_fill(~real, self.base.tokenizer.pad_token_id)
        return Drawn(ids, real, real & (torch.arange(ids.shape[1]).to(ids) >= prompt.shape[1]))

    def _sample(self, prompt: Tensor, uniform: Tensor) -> Tensor:
        """Return the tokens that uniform numbers, (longest, k), choose after a prompt: (k, n)."""
        end, tokens, past, new = self.base.tokenizer.eos_token_id, [], None, prompt
        done = torch.zeros(len(prompt), dtype=torch.bool, device=self._device)
        for numbers in uniform:
            with (
                torch.no_grad(),
                torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16),
            ):
                outputs = self._model(input_ids=new, past_key_values=past, use_cache=True)
            past = outputs.past_key_values
            mass = outputs.logits[:, -1].double().softmax(1).cumsum(1)
            chosen = torch.searchsorted(mass, (numbers * mass[:, -1])[:, None], right=True)
            new = chosen.clamp(max=mass.shape[1] - 1).masked_fill(done[:, None], end)
            tokens.append(new)
            done |= new[:, 0] == end
            if bool(done.all()):
                break
        return torch.cat(tokens, 1)


def compare_with_others(rewards: Tensor) -> Tensor:
    """Return of each reward, (k,), what it has above the mean of the others."""
    count = len(rewards)
    return (count * rewards - rewards.sum()) / (count - 1)
