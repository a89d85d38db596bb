"""Learning from releases: DPO and reward models that honour the noise of every row, and features.

    import labelguard as lg
    from labelguard_trainer import DPOConfig, DPOTrainer
    trainer = DPOTrainer(
        "openai-community/gpt2", DPOConfig("out"), train_dataset=lg.load("releases/r1", "datasets")
    )
    trainer.train()

TRL's own trainers read a release too, but drop its probabilities silently and learn its noise.
Importing this is light; torch, transformers and TRL load at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelguard_trainer.features.cache import VectorCache
    from labelguard_trainer.features.encoder import EncoderConfig, FrozenEncoder
    from labelguard_trainer.training.dpo import DPOConfig, DPOTrainer
    from labelguard_trainer.training.evaluate import TrainingResult
    from labelguard_trainer.training.publishing import publish_model
    from labelguard_trainer.training.reward import RewardConfig, RewardTrainer
    from labelguard_trainer.training.run import train

_HOMES = {
    "features.cache": ["VectorCache"],
    "features.encoder": ["EncoderConfig", "FrozenEncoder"],
    "training.dpo": ["DPOConfig", "DPOTrainer"],
    "training.evaluate": ["TrainingResult"],
    "training.publishing": ["publish_model"],
    "training.reward": ["RewardConfig", "RewardTrainer"],
    "training.run": ["train"],
}

__all__ = [
    "DPOConfig",
    "DPOTrainer",
    "EncoderConfig",
    "FrozenEncoder",
    "RewardConfig",
    "RewardTrainer",
    "TrainingResult",
    "VectorCache",
    "publish_model",
    "train",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            if home.startswith("training"):
                import_module("labelguard_trainer.training").check()
            return getattr(import_module(f"labelguard_trainer.{home}"), name)
    raise AttributeError(f"module 'labelguard_trainer' has no attribute {name!r}")
