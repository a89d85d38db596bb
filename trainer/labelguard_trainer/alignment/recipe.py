"""The recipe of an alignment: one YAML file, read and checked before anything heavy is loaded.

release: r0001
model: openai-community/gpt2
prompts: prompts.parquet        # public; by default those of the release
sft:                            # left out, reinforcement learning begins from `model`
  demonstrations: answers.parquet   # public prompt, response; by default what was chosen
  config: {learning_rate: 2.0e-5}
reward:
  base: openai-community/gpt2   # trains a reward model; by default the release's own head
  mix: {length: -0.1}           # public rewards beside it, by weight
rl:
  method: rloo
  max_kl: 10
  config: {learning_rate: 1.0e-5, num_generations: 4}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field

from labelguard.configuration import loader
from labelguard.configuration.loader import SettingsTable, Text, setting

Method: TypeAlias = Literal["rloo", "grpo"]
Config: TypeAlias = Mapping[str, Any]


class SftRecipe(SettingsTable):
    """Supervised fine-tuning on responses that show what is wanted."""

    demonstrations: Text | None = setting(
        "public file of prompt and response; by default what the release's rows chose"
    )
    config: Config = setting("fields of TRL's SFTConfig", {})
    lora: Text | None = setting("r=N,alpha=N, as in train dpo")


class RewardRecipe(SettingsTable):
    """The reward that a policy learns from."""

    base: Text | None = setting(
        "model to train a reward model from, on the release; by default its own head"
    )
    loss: Literal["auto", "forward", "robust", "soft", "plain"] = setting(
        "loss of that model, as in train reward", "auto"
    )
    config: Config = setting("fields of TRL's RewardConfig", {})
    lora: Text | None = setting("r=N,alpha=N, as in train reward")
    mix: Mapping[str, float] = setting("public rewards that are added, by weight", {})


class RlRecipe(SettingsTable):
    """Reinforcement learning of a policy. TRL tells its KL as a mean over tokens."""

    method: Method = setting("rloo or grpo, by TRL", "rloo")
    max_kl: Annotated[float, Field(gt=0)] | None = setting(
        "stop at this KL from the model it began from, in nats a token"
    )
    holdout: float = setting("share of the prompts to evaluate on", 0.1, ge=0, lt=1)
    config: Config = setting("fields of TRL's RLOOConfig or GRPOConfig", {})
    lora: Text | None = setting("r=N,alpha=N: train an adapter, and merge it")


class Recipe(SettingsTable):
    """From a release to an aligned model."""

    release: Text = Field(description="id of a release in the project, or a directory with one")
    model: Text = Field(description="language model to begin from: a directory, or a hub's id")
    prompts: Text | None = setting("public file of prompts; by default those of the release")
    sft: SftRecipe | None = setting("fine-tuning before; left out: none")
    reward: RewardRecipe = RewardRecipe()
    rl: RlRecipe = RlRecipe()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the recipe in a YAML file; `LabelguardError` names what does not fit."""
        return loader.validate_settings(cls, loader.read_settings_file(path), path.name)
