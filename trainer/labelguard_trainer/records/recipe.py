"""The recipe of an alignment on whole records: one YAML file, checked before anything is read.

private: records
unit: user                      # user_id in each file; or record, and record_id
model: openai-community/gpt2    # public
epsilon: 4
delta: 1.0e-5
stages: 1                       # that one user may have records in: 1, everybody is in one part
q: 0.2                          # with which a user is in a step
steps: 100                      # of each stage
sft:
  demonstrations: demonstrations.parquet    # user_id, prompt, response
reward:
  preferences: preferences.parquet          # user_id, prompt, chosen, rejected
rl:
  prompts: prompts.parquet                  # user_id, prompt
  config: {num_generations: 4}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field

from labelguard.budget.event_kind import MOST_RECORDS, MOST_STEPS, MOST_UPDATES, Sampling
from labelguard.budget.events import RECORDS
from labelguard.budget.policy import Allowance, Policy
from labelguard.configuration import loader
from labelguard.configuration.loader import SettingsTable, Text, setting
from labelguard.errors import LabelguardError, PolicyError
from labelguard_trainer.training.settings import StageName

_MOST_STAGES = 3
_Positive: TypeAlias = Annotated[float, Field(ge=1e-12, le=1e12)]
_AtLeast1: TypeAlias = Annotated[int, Field(ge=1, le=1 << 20)]


class StageConfig(SettingsTable):
    """Settings by which a stage learns; its steps and cohorts are those of the policy."""

    learning_rate: _Positive | None = setting("1e-3 with LoRA, else 1e-5")
    max_grad_norm: _Positive = setting("clip norm of a user's gradient", 0.1)
    max_length: _AtLeast1 | None = setting("tokens of a record, at most")
    optim: Literal["adamw_torch", "sgd"] = setting("optimizer", "adamw_torch")
    seed: int = setting("of new weights", 42, ge=0)
    bf16: bool | None = setting("arithmetic; by default where a GPU has it")
    use_cpu: bool = setting("even where there is a GPU", False)


class PolicyConfig(StageConfig):
    """Settings by which a policy learns from responses that it draws."""

    num_generations: int = setting("responses to a prompt", 4, ge=2, le=256)
    max_completion_length: _AtLeast1 = setting("tokens of a response", 64)
    beta: float = setting("price of KL, in the reward", 0.05, ge=0, le=1e6)


class StageRecipe(SettingsTable):
    lora: Text | None = setting("adapters; null: whole model", "r=16,alpha=32")


class SftStage(StageRecipe):
    """Supervised fine-tuning on demonstrations."""

    demonstrations: Text = Field(description="Parquet: an id, prompt, response")
    config: StageConfig = StageConfig()


class RewardStage(StageRecipe):
    """A reward model of preferences, or a public one."""

    preferences: Text | None = setting("Parquet: id, prompt, sides")
    public: Text | None = setting("a public reward model, in their place")
    base: Text | None = setting("to begin from; by default as the policy")
    config: StageConfig = StageConfig()


class RlStage(StageRecipe):
    """Optimization of a policy on prompts."""

    prompts: Text = Field(description="Parquet: an id, prompt")
    config: PolicyConfig = PolicyConfig()


class RecordsRecipe(SettingsTable):
    """From people's records to an aligned model."""

    private: Literal["records"]
    unit: Literal["user", "record"] = Field(description="what is protected as a whole")
    model: Text = Field(description="public language model to begin from")
    epsilon: float = Field(gt=0, description="of each user or record, all stages together")
    delta: float = Field(gt=0, lt=1, description="likewise")
    stages: int = setting("that one may be in", 1, ge=1, le=_MOST_STAGES)
    q: float = Field(ge=1e-6, le=1, description="probability of being in a step")
    steps: int = Field(ge=1, le=MOST_STEPS, description="of each stage")
    updates: int = setting("of a cohort, which is paid", 1, ge=1, le=MOST_UPDATES)
    records_a_step: int = setting("of one user", 8, ge=1, le=MOST_RECORDS)
    sft: SftStage | None = None
    reward: RewardStage | None = None
    rl: RlStage | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the recipe in a YAML file; `LabelguardError` names what does not fit."""
        recipe = loader.validate_settings(cls, loader.read_settings_file(path), path.name)
        reward = recipe.reward
        if reward and (reward.preferences is None) == (reward.public is None):
            raise LabelguardError(f"{path.name}: reward names either preferences or a public model")
        if recipe.rl and not reward:
            raise LabelguardError(f"{path.name}: rl needs a reward (reward: preferences or public)")
        if not list(recipe.sources()):
            raise LabelguardError(f"{path.name}: no stage reads records: sft, reward or rl")
        return recipe

    def sources(self) -> Iterator[tuple[StageName, Path, tuple[str, ...]]]:
        """Yield the stages that read records, in their order: files, and columns of texts."""
        if self.sft:
            yield "sft", Path(self.sft.demonstrations), ("prompt", "response")
        if self.reward and self.reward.preferences:
            yield "reward", Path(self.reward.preferences), ("prompt", "chosen", "rejected")
        if self.rl:
            yield "rl", Path(self.rl.prompts), ("prompt",)

    @property
    def policy(self) -> Policy:
        """The policy that pays for it."""
        sampling = Sampling(self.q, self.steps, updates=self.updates)
        allowance = Allowance(RECORDS.name, self.stages, sampling=sampling)
        return Policy(self.epsilon, self.delta, (allowance,), "zero", unit=self.unit)

    def decisive(self, name: StageName) -> dict[str, Any]:
        """Return what decides how a stage learns, beside its records and the model it begins from.

        The names of files do not: a file by another name is no other request.
        """
        stage: Any = getattr(self, name)
        files = {"demonstrations", "preferences", "prompts", "base", "public"}
        return dict(stage.model_dump(exclude=files))


def is_records_recipe(path: Path) -> bool:
    """Return whether the recipe in a file is one of whole records."""
    return "private" in loader.read_settings_file(path)


def check_terms(recipe: RecordsRecipe, policy: Policy) -> None:
    """Raise `PolicyError` where a recipe states other terms than the policy in force has.

    So it does for a policy that pays for labels, whatever its terms.
    """
    one, other = policy.allowance(RECORDS.name), recipe.policy.allowances[0]
    assert one.sampling is not None and other.sampling is not None
    terms = {
        "epsilon": (policy.epsilon, recipe.epsilon),
        "delta": (policy.delta, recipe.delta),
        "unit": (policy.unit, recipe.unit),
        "stages": (one.allowed, other.allowed),
        "q": (one.sampling.probability, other.sampling.probability),
        "steps": (one.sampling.steps, other.sampling.steps),
        "updates": (one.sampling.updates, other.sampling.updates),
    }
    for name, (has, wanted) in terms.items():
        if has != wanted:
            raise PolicyError(
                f"this project's policy has {name}: {has}, fixed and priced when it was made; the "
                f"recipe asks for {wanted}; take what the policy has, make another (labelguard "
                "policy new), or use another project"
            )
