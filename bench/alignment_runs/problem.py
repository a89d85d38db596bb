"""One seed's language model, labels and releases, and how policies are measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from dpo import base, labels
from dpo.grammar import Pairs
from dpo.labels import Budget
from transformers import AutoModelForCausalLM, AutoTokenizer

import labelguard as lg
from alignment_runs import language
from labelguard.analysis.reward import ReleaseReward
from labelguard.learning.heads import fit_statistic, label_statistic
from labelguard.release.head import Head
from labelguard.text import no_progress

_GPT2 = base.Size(width=96, layers=3)


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    pairs: int = 5000
    labels: int = 10  # of each labeler
    model: base.Size = _GPT2
    steps: int = 150  # of reinforcement learning
    responses: int = 64  # a step
    prompts: int = 256  # to measure on
    samples: int = 16  # candidates of best-of-N
    seeds: int = 3


TINY = Scale(
    pairs=60, labels=2, model=base.TINY, steps=2, responses=8, prompts=8, samples=4, seeds=1
)
TOKENS = 40  # of a response, at most
_EVALUATION = 10**6


@dataclass(frozen=True)
class Measured:
    """Responses of a policy to fresh prompts: one reward each, and the KL from the start."""

    rewards: language.Floats
    # nats a response
    kl: float
    # by the teacher's head
    teacher: float
    distance: float


@dataclass(frozen=True)
class Problem:
    """A seed's data in a directory of its own."""

    scale: Scale
    seed: int
    directory: Path

    @cached_property
    def base(self) -> Path:
        """The language model that everything begins with; it is the same for all seeds."""
        size = replace(self.scale.model, sentences=language.SENTENCES)
        return base.pretrained(size, self.directory.parent)

    @cached_property
    def pairs(self) -> Pairs:
        """What labelers compared."""
        return language.pairs(self.scale.pairs, self.seed)

    @cached_property
    def prompts(self) -> list[str]:
        """Fresh prompts to measure on."""
        return language.pairs(self.scale.prompts, _EVALUATION + self.seed).prompt

    def release(self, epsilon: float) -> Path:
        """The directory of a statistic release of the labels."""
        budget = Budget(epsilon, self.scale.labels)
        return labels.released(labels.STATISTIC, budget, self.pairs, self.seed, self.directory)

    def teacher(self, epsilon: float) -> ReleaseReward:
        """The reward of a release."""
        return lg.reward(self.release(epsilon))

    def exact_teacher(self, epsilon: float) -> ReleaseReward:
        """The reward of a head fitted to the same labels in the same coordinates without noise."""
        head = Head.load(self.release(epsilon))
        provider = head.load_provider(no_progress)
        provider.store_nothing()
        values = labels.raw(self.pairs, self.seed)
        table = labels.table(self.pairs, values, Budget(epsilon, self.scale.labels))
        table = table.rename_columns({"response_a": "first", "response_b": "second"})
        z = provider(table) @ head.basis.projection.astype(np.float32)
        answers = table["label"].to_numpy().astype(float)
        theta = fit_statistic(z, 1.0, label_statistic(z, answers), head.basis.metric**2)
        exact = replace(head, coefficients=head.basis.projection @ theta)

        def score(texts: pa.Table) -> language.Floats:
            sides = {"first": texts["response"], "second": pa.array([""] * texts.num_rows)}
            return exact.predict_log_odds(provider(pa.table({"prompt": texts["prompt"], **sides})))

        return ReleaseReward("exact", [(score, 1.0)], (), None)

    def measure(self, model: Path, start: Path, teacher: ReleaseReward) -> Measured:
        """Return how good a model's responses to the fresh prompts are."""
        prompts, responses, ids = sample(model, self.prompts, 1, self.seed)
        kl = np.mean(log_probs(model, ids) - log_probs(start, ids))
        return Measured(
            language.true_rewards(prompts, responses),
            float(kl),
            float(teacher.score(prompts, responses).mean()),
            float(teacher.distances(prompts, responses).mean()),
        )


def sample(
    path: Path, prompts: list[str], each: int, seed: int
) -> tuple[list[str], list[str], list[list[list[int]]]]:
    """Return prompts, responses and their token ids [prompt, response], `each` for every prompt."""
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    torch.manual_seed(seed)
    repeated = [prompt for prompt in prompts for _ in range(each)]
    responses, ids = [], []
    for start in range(0, len(repeated), 512):
        some = tokenizer(repeated[start : start + 512], return_tensors="pt", padding=True)
        with torch.inference_mode():
            written = model.generate(
                **some,
                do_sample=True,
                top_k=0,  # transformers leaves out all but 50 words else, and a policy does not
                max_new_tokens=TOKENS,
                pad_token_id=tokenizer.pad_token_id,
            )
        width = some["input_ids"].shape[1]
        for row, mask in zip(written, some["attention_mask"], strict=True):
            answer = row[width:].tolist()
            if tokenizer.eos_token_id in answer:
                answer = answer[: answer.index(tokenizer.eos_token_id) + 1]
            ids.append([row[:width][mask.bool()].tolist(), answer])
            responses.append(tokenizer.decode(answer, skip_special_tokens=True))
    return repeated, responses, ids


def log_probs(path: Path, ids: list[list[list[int]]]) -> language.Floats:
    """Return the log-probability of each response, shape (n,)."""
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    totals: list[float] = []
    for start in range(0, len(ids), 128):
        some = ids[start : start + 128]
        longest = max(len(prompt) + len(answer) for prompt, answer in some)
        batch = torch.zeros((len(some), longest), dtype=torch.long)
        counts = torch.zeros((len(some), longest), dtype=torch.bool)
        for row, (prompt, answer) in enumerate(some):
            end = len(prompt) + len(answer)
            batch[row, :end] = torch.tensor(prompt + answer)
            counts[row, len(prompt) : end] = True
        with torch.inference_mode():
            logits = model(input_ids=batch).logits[:, :-1].log_softmax(-1)
        each = logits.gather(2, batch[:, 1:, None])[:, :, 0]
        totals += (each * counts[:, 1:]).sum(1).tolist()
    return np.array(totals)


def summarize(measured: Measured) -> dict[str, Any]:
    """Return what goes into a record."""
    return {**asdict(measured), "rewards": [round(float(r), 3) for r in measured.rewards]}
