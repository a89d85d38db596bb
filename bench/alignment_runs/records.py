"""Alignment with whole records private: demonstrations, preferences and prompts of people.

Everybody is in one of three parts, 3,000 people each: they show a response of one
sentence in one of the three best styles, prefer one of two, or ask. *True reward*: as for
`language`, of responses to fresh public prompts. The stages without privacy are the same, clip
included, without noise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from dpo import base, grammar
from labelguard_trainer.records.align import align_records
from labelguard_trainer.records.people import Part, read_people
from labelguard_trainer.records.recipe import RecordsRecipe
from labelguard_trainer.records.stages import RecordStage, RewardModel, StageRuns
from labelguard_trainer.training import models

import labelguard as lg
from alignment_runs import language
from alignment_runs.problem import sample
from labelguard.project.opening import OpenProject
from labelguard.text import no_progress

EPSILONS = (1.0, 4.0, 8.0, float("inf"))
UPDATES = (1, 2, 4)  # of each cohort, at ε = 4
# Of a public reward; of one that learned from people, which is about 4 times as large.
_BETA = {"public": 0.02, "people": 0.5}
# Without noise a policy that is as fast runs away from what its reward knows.
_RATE_WITHOUT_NOISE, _LEAST_BETA_WITHOUT_NOISE = 1e-2, 0.1
_SENTENCES = (1, 1)
_TOKENS = 10
_EVALUATION, _PUBLIC = 10**6, 10**7
_BEST = 3  # styles that are shown


_GPT2 = base.Size(width=64, layers=2)


@dataclass(frozen=True)
class RecordsScale:
    """How large everything is."""

    people: int = 3000  # of each part
    records: int = 1  # of each person
    q: float = 1 / 60
    steps: int = 24
    prompts: int = 512
    seeds: int = 3
    public: int = 8000  # pairs of texts for the public reward
    model: base.Size = _GPT2


TINY_RECORDS = RecordsScale(
    people=20, records=2, q=0.3, steps=2, prompts=8, seeds=1, public=50, model=base.TINY
)
_RATES = {"sft": 5e-3, "reward": 5e-3, "rl": 1.5e-2}


@dataclass(frozen=True)
class RecordsProblem:
    """A seed's people in a directory of its own."""

    scale: RecordsScale
    seed: int
    directory: Path

    @property
    def base(self) -> Path:
        """The public language model that everything begins with."""
        size = replace(self.scale.model, sentences=_SENTENCES)
        return base.pretrained(size, self.directory.parent)

    @property
    def public_reward(self) -> Path:
        """A reward model that knows the planted attribute from public texts, right ones and wrong.

        A GPT-2 that was fitted to a tenth of the true reward, by least squares.
        """
        path = self.directory.parent / "reward"
        if path.exists():
            return path
        tokenizer = models.load_tokenizer(str(self.base))
        model = models.load_model("reward", str(self.base))
        model.config.pad_token_id = tokenizer.pad_token_id
        pairs = language.pairs(self.scale.public, _PUBLIC, _SENTENCES)
        draw = np.random.default_rng(_PUBLIC)
        said = [*pairs.first, *(_spoiled(text, draw) for text in pairs.second)]
        truth = language.true_rewards(2 * pairs.prompt, said) / 10
        texts = [f"{p}{t}<eos>" for p, t in zip(2 * pairs.prompt, said, strict=True)]
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
        for _ in range(self.scale.public // 10):
            rows = draw.integers(len(texts), size=64)
            batch = tokenizer([texts[row] for row in rows], return_tensors="pt", padding=True)
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            given = model(**inputs).logits[:, 0]
            (given - torch.tensor(truth[rows]).float()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    def write(self, epsilon: float, updates: int, reward: str) -> Path:
        """Write everybody's records, and the recipe; return it."""
        scale, count = self.scale, self.scale.people * self.scale.records
        draw = np.random.default_rng(self.seed)
        for place, part in enumerate(("demonstrations", "preferences", "prompts")):
            pairs = language.pairs(count, 10 * self.seed + place, _SENTENCES)
            columns: dict[str, Any] = {"prompt": pairs.prompt}
            if part == "demonstrations":
                columns["response"] = _good(count, 10 * self.seed + 3, pairs.prompt)
            if part == "preferences":
                first = pairs.labels(draw).astype(bool)
                sides = np.array([pairs.first, pairs.second], object)
                columns["chosen"] = np.where(first, *sides).tolist()
                columns["rejected"] = np.where(first, *sides[::-1]).tolist()
            who = [f"{part[0]}{place}-{row % scale.people}" for row in range(count)]
            pq.write_table(
                pa.table({"user_id": who, **columns}), self.directory / f"{part}.parquet"
            )
        common = {"seed": self.seed, "use_cpu": True, "bf16": False}
        lora = "r=4,alpha=8"
        recipe: dict[str, Any] = {
            "private": "records",
            "unit": "user",
            "model": str(self.base),
            "epsilon": min(epsilon, 1e6),
            "delta": 1e-5,
            "q": scale.q,
            "steps": scale.steps,
            "updates": updates,
            "records_a_step": scale.records,
            "sft": {
                "demonstrations": str(self.directory / "demonstrations.parquet"),
                "lora": lora,
                "config": {**common, "learning_rate": _RATES["sft"]},
            },
            "reward": {
                "preferences": str(self.directory / "preferences.parquet"),
                "lora": lora,
                "config": {**common, "learning_rate": _RATES["reward"]},
            },
            "rl": {
                "prompts": str(self.directory / "prompts.parquet"),
                "lora": lora,
                "config": {
                    **common,
                    "learning_rate": _RATES["rl"],
                    "max_completion_length": _TOKENS,
                    "beta": _BETA[reward],
                },
            },
        }
        if np.isinf(epsilon):
            config = recipe["rl"]["config"]
            config["learning_rate"] = _RATE_WITHOUT_NOISE
            config["beta"] = max(_BETA[reward], _LEAST_BETA_WITHOUT_NOISE)
        if reward == "public":
            recipe["reward"] = {"public": str(self.public_reward)}
        path = self.directory / f"recipe-{epsilon:g}-{updates}-{reward}.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    def models(self, epsilon: float, updates: int, reward: str) -> Path:
        """Return the directory of the models, which are trained if they are not there."""
        name = f"{epsilon:g}-{updates}-{reward}"
        output = self.directory / f"models-{name}"
        if output.exists():
            return output
        recipe = self.write(epsilon, updates, reward)
        project = lg.init(self.directory / f"project-{name}", max_epsilon=1e7)
        if np.isfinite(epsilon):
            align_records(recipe, output=output, project=project)
            return output
        begun = output.with_suffix(".partial")
        for _ in train_stages(RecordsRecipe.read(recipe), project, begun, noise=0.0):
            pass
        return begun.rename(output)

    def measure(self, model: Path) -> language.Floats:
        """Return the true rewards of responses to fresh public prompts."""
        fresh = language.pairs(self.scale.prompts, _EVALUATION + self.seed, _SENTENCES).prompt
        prompts, responses, _ = sample(model, fresh, 1, self.seed)
        return language.true_rewards(prompts, responses)

    def accuracy(self, reward: Path) -> float:
        """Return how often a reward model prefers the truly better of two fresh responses."""
        pairs = language.pairs(self.scale.prompts, _EVALUATION + self.seed, _SENTENCES)
        judge = RewardModel(str(reward), str(self.base))
        tokenizer = models.load_tokenizer(str(self.base))
        right = []
        for prompt, *sides, better in zip(
            pairs.prompt, pairs.first, pairs.second, pairs.advantage, strict=True
        ):
            ids = [tokenizer(f" {side}")["input_ids"] for side in sides]
            first, second = judge(tokenizer(prompt)["input_ids"], ids).tolist()
            right.append((first > second) == (better > 0))
        return float(np.mean(right))


def train_stages(
    recipe: RecordsRecipe, project: Any, directory: Path, *, noise: float
) -> Iterator[Part]:
    """Train each stage of a recipe at this noise multiplier; yield its part when it is done."""
    price = {"noise_multiplier": noise, "sampling_probability": recipe.q, "steps": recipe.steps}
    runs = StageRuns(directory, lambda data: bytes(32), no_progress)
    start = recipe.model
    for part in read_people(recipe, OpenProject.open(project)).parts:
        stage = RecordStage.of(
            part.name, start, recipe.decisive(part.name), recipe.records_a_step, 1
        )

        def judge(start: str = start) -> Any:
            public = recipe.reward.public if recipe.reward else None
            reward = public or runs.find_finished("reward")
            return reward and RewardModel(str(reward), start)

        trained = runs.train(stage, part, "user_id", price, judge)
        start = str(trained) if part.name == "sft" else start
        yield part


def _spoiled(text: str, draw: np.random.Generator) -> str:
    """Return a response as it is, or with a few of its words exchanged for others."""
    words = text.split()
    if draw.random() < 0.5:
        for place in draw.integers(len(words), size=draw.integers(1, 4)):
            words[place] = str(draw.choice(grammar.vocabulary()))
    return " ".join(words)


def _good(count: int, seed: int, prompts: list[str]) -> list[str]:
    """Return responses in the best styles, most of them on the topic of their prompts."""
    nouns, adjectives, verbs = grammar.words()
    draw = np.random.default_rng(seed)
    topic_of = {word: row for row, some in enumerate(nouns) for word in some}
    texts = []
    for prompt in prompts:
        style = draw.integers(grammar.STYLES - _BEST, grammar.STYLES)
        topic = topic_of[prompt.split()[1]]
        if draw.random() < 0.3:
            topic = draw.integers(grammar.TOPICS)
        one, other = draw.choice(nouns[topic], 2)
        adjective, verb = draw.choice(adjectives[style]), draw.choice(verbs[style])
        texts.append(f"the {adjective} {one} {verb} the {other} .")
    return texts


def settings() -> Iterator[tuple[float, int, str]]:
    """Yield (ε, updates, reward) of every run of a seed."""
    yield from ((epsilon, 1, "public") for epsilon in EPSILONS)
    yield from ((4.0, updates, "public") for updates in UPDATES[1:])
    yield from ((epsilon, 1, "people") for epsilon in (4.0, float("inf")))


def run(
    scale: RecordsScale, seed: int, directory: Path, setting: tuple[float, int, str]
) -> dict[str, Any]:
    """Return the record of a run, from its file if it was done: true rewards of each stage."""
    directory.mkdir(parents=True, exist_ok=True)
    name = "-".join(map(str, setting))
    file = directory / f"{name}.json"
    if file.exists():
        record: dict[str, Any] = json.loads(file.read_text())
        return record
    problem = RecordsProblem(scale, seed, directory)
    trained = problem.models(*setting)
    record = {
        "seed": seed,
        **dict(zip(("epsilon", "updates", "reward"), setting, strict=True)),
        "untrained": float(problem.measure(problem.base).mean()),
        "sft": float(problem.measure(trained / "sft").mean()),
        "rl": float(problem.measure(trained / "rl").mean()),
    }
    if setting[2] == "people":
        record["accuracy"] = problem.accuracy(trained / "reward")
    file.write_text(json.dumps(record))
    return record
