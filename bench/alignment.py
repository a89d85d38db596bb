"""Align a language model with one private release: SFT, DPO and reinforcement learning.

    python bench/alignment.py           # half an hour of two cores; resumable
    python bench/alignment.py --tiny    # every method once, in a minute

A GPT-2 of 0.4 million parameters, pretrained on a made-up language, learns what 500 simulated
labelers with ten labels each prefer, from one statistic release at (ε, 1e-5): by `labelguard align`
(fine-tuning on what the release prefers, then RLOO with its head as reward), and by DPO from the
fine-tuned model. *True reward*: what preferences were drawn from, of responses to 256 fresh
prompts. For *no privacy* the release is made at ε = 50. *KL*: of a policy from the fine-tuned
model, in nats a response.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from _measure import report
from _runs import Record, Store, digest_code, select
from labelguard_trainer import train
from labelguard_trainer.alignment.align import align
from planted import grammar, models
from planted.grammar import ADJECTIVES, NOUNS, TOPIC, VALUES, VERBS, Floats, Pairs
from planted.models import Size
from transformers import AutoModelForCausalLM, AutoTokenizer

SHARPNESS = 0.2  # of labels: log-odds for each point of reward
NO_PRIVACY = 50.0  # ε of the reference; the noise of 500 labelers is nothing then
TOKENS = 40  # of a response, at most
FRESH = 10**6
_SENTENCE = re.compile(r"the (\w+) (\w+) (\w+) the (\w+)")
_STYLE_OF, _VERB_STYLE_OF, _TOPIC_OF = (
    {str(word): row for row, some in enumerate(words) for word in some}
    for words in (ADJECTIVES, VERBS, NOUNS)
)


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    size: Size
    labelers: int = 500
    each: int = 10
    steps: int = 150  # of reinforcement learning
    responses: int = 64  # a step
    prompts: int = 256  # to measure on
    seeds: int = 3


FULL = Scale(Size(96, 3, (2, 4)))
TINY = Scale(Size(16, 1, (2, 4), steps=3), 30, 2, 2, 8, 8, 1)


def true_rewards(prompts: Sequence[str], responses: Sequence[str]) -> Floats:
    """Return the mean over the sentences of each response, shape (n,).

    A sentence is worth its style, and a bonus where its subject is on the prompt's topic. What is
    no sentence of the language counts as the worst style: words that nobody would read gain
    nothing.
    """
    rewards = []
    for prompt, response in zip(prompts, responses, strict=True):
        topic = _TOPIC_OF.get(prompt.split()[1], -1)
        sentences = [part.strip() for part in response.split(".") if part.strip()]
        rewards.append(np.mean([_reward(one, topic) for one in sentences] or [VALUES[0]]))
    return np.array(rewards)


def _reward(sentence: str, topic: int) -> float:
    match = _SENTENCE.fullmatch(sentence)
    adjective, noun, verb, other = match.groups() if match else ("",) * 4
    styles = [_STYLE_OF.get(adjective), _VERB_STYLE_OF.get(verb)]
    if None in styles or noun not in _TOPIC_OF or other not in _TOPIC_OF:
        return float(VALUES[0])
    return float(np.mean(VALUES[styles])) + TOPIC * (_TOPIC_OF[noun] == topic)


def draw_pairs(count: int, seed: int, size: Size) -> Pairs:
    """Return fresh pairs, whose labels are noisier than the reward."""
    drawn = grammar.draw_pairs(count, seed, size.sentences)
    first, second = (true_rewards(drawn.prompt, side) for side in (drawn.first, drawn.second))
    return replace(drawn, advantage=SHARPNESS * (first - second))


def align_with(epsilon: float, seed: int, scale: Scale, work: Path) -> list[Record]:
    """Return the record of each model that learned from a release at one ε."""
    base = models.pretrain(scale.size, work)
    pairs = draw_pairs(scale.labelers * scale.each, seed, scale.size)
    home = work / f"{epsilon:g}-{seed}"
    home.mkdir(exist_ok=True)
    answers = models.ask(pairs, scale.labelers, scale.each, seed)
    path = home / "release"
    models.release("statistic", answers, epsilon, path, features="text+length")
    shared = {"use_cpu": True, "bf16": False, "activation_checkpointing": False, "seed": seed}
    few = {**shared, "num_train_epochs": 1, "per_device_train_batch_size": scale.size.batch}
    policy = {
        **shared,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "constant",
        "max_steps": scale.steps,
        "per_device_train_batch_size": scale.responses,
        "num_generations": 4,
        "max_completion_length": TOKENS,
        "beta": 0.05,
    }
    recipe = {
        "release": str(path),
        "model": str(base),
        "sft": {"config": {**few, "learning_rate": 1e-3}},
        "rl": {"config": policy, "holdout": 0.05},
    }
    file = home / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    reached = align(file, output=home / "models", project=None).stages[-1].after
    tuned = home / "models" / "sft"
    learned = {"fine-tuned (SFT)": tuned, "RL": home / "models" / "rl"}
    if epsilon < NO_PRIVACY:
        learned |= {"untrained": base, "DPO": home / "dpo"}
        if not learned["DPO"].exists():
            config = models.write_settings(
                {**few, "learning_rate": 5e-4, "beta": 0.1}, home / "dpo.yaml"
            )
            train("dpo", path, tuned, output=learned["DPO"], config=config, holdout=0)
    records = []
    for method, model in learned.items():
        fresh = draw_pairs(scale.prompts, FRESH + seed, scale.size).prompt
        rewards = true_rewards(fresh, write_responses(model, fresh, seed))
        kl = reached["kl"] * reached["length"] if method == "RL" else None
        cell = {"method": method, "epsilon": epsilon, "seed": seed}
        records.append({**cell, "reward": float(rewards.mean()), "kl": kl})
    return records


def write_responses(model: Path, prompts: list[str], seed: int) -> list[str]:
    """Return a sampled response to each prompt."""
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(model).eval()
    torch.manual_seed(seed)
    asked = tokenizer(prompts, return_tensors="pt", padding=True)
    with torch.inference_mode():
        written = policy.generate(
            **asked,
            do_sample=True,
            top_k=0,  # transformers leaves out all but 50 words else, and a policy does not
            max_new_tokens=TOKENS,
            pad_token_id=tokenizer.pad_token_id,
        )
    answers = written[:, asked["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(answers)
    return [text.partition("<eos>")[0].replace("<pad>", "").strip() for text in texts]


def tabulate(records: list[Record]) -> Iterator[list[Any]]:
    """Yield a row for each method and ε: means over seeds, each seed, and the share of the gain."""

    def mean(method: str, epsilon: float) -> float:
        cells = select(records, method=method, epsilon=epsilon)
        return float(np.mean([cell["reward"] for cell in cells]))

    start = mean("fine-tuned (SFT)", NO_PRIVACY)
    gain = mean("RL", NO_PRIVACY) - start
    for method, epsilon in dict.fromkeys((r["method"], r["epsilon"]) for r in records):
        cells = select(records, method=method, epsilon=epsilon)
        reward = mean(method, epsilon)
        kl = [cell["kl"] for cell in cells if cell["kl"] is not None]
        yield [
            method,
            "ε = 50" if epsilon == NO_PRIVACY else f"ε = {epsilon:g}",
            f"{reward:+.2f}",
            ", ".join(f"{cell['reward']:+.2f}" for cell in cells),
            f"{(reward - start) / gain:.0%}" if gain else "",
            f"{np.mean(kl):.1f}" if kl else "",
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing; print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    work = Path(tempfile.gettempdir()) / "labelguard-alignment"
    parser.add_argument("--work", type=Path, default=work, help="models, releases, finished runs")
    parser.add_argument("--epsilon", type=float, default=1.0, help="of the release")
    parser.add_argument("--tiny", action="store_true", help="a few pairs, to see that it runs")
    options = parser.parse_args(arguments)
    scale, work = (TINY, options.work / "tiny") if options.tiny else (FULL, options.work / "full")
    work.mkdir(parents=True, exist_ok=True)
    models.be_quiet()
    store = Store(work / "runs.jsonl")
    code = digest_code(Path(__file__).parent / "planted", Path(__file__))
    records = []
    for seed in range(scale.seeds):
        for epsilon in (options.epsilon, NO_PRIVACY):
            key = (code, epsilon, seed, scale)
            record = store.get(*key) or store.put(
                {"models": align_with(epsilon, seed, scale, work)}, *key
            )
            records += record["models"]
    columns = ["model", "privacy", "true reward", "by seed", "of the gain", "KL"]
    report("alignment", columns, list(tabulate(records)))


if __name__ == "__main__":
    main()
