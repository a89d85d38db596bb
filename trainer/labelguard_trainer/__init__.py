"""Learning from releases: DPO and reward models that honour the noise of every row, and features.

    import labelguard as lg
    from labelguard_trainer import DPOConfig, DPOTrainer
    trainer = DPOTrainer(
        "openai-community/gpt2", DPOConfig("out"), train_dataset=lg.load("releases/r1", "datasets")
    )
    trainer.train()

TRL's own trainers read a release too, but drop its probabilities silently and learn its noise.
Importing this is light; torch, transformers and TRL load at first use, and `losses` needs torch
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelguard_trainer.alignment.best_of import best_of
    from labelguard_trainer.alignment.generation import generate
    from labelguard_trainer.alignment.synthesis import synthesize
    from labelguard_trainer.features.cache import VectorCache
    from labelguard_trainer.features.encoder import EncoderConfig, FrozenEncoder
    from labelguard_trainer.training.dpo import DPOConfig, DPOTrainer
    from labelguard_trainer.training.evaluate import TrainingResult
    from labelguard_trainer.training.kto import KTOConfig, KTOTrainer
    from labelguard_trainer.training.reward import RewardConfig, RewardTrainer
    from labelguard_trainer.training.run import train
    from labelguard_trainer.training.training_card import publish_model

_HOMES = {
    "alignment.best_of": ["best_of"],
    "alignment.generation": ["generate"],
    "alignment.synthesis": ["synthesize"],
    "features.cache": ["VectorCache"],
    "features.encoder": ["EncoderConfig", "FrozenEncoder"],
    "training.dpo": ["DPOConfig", "DPOTrainer"],
    "training.evaluate": ["TrainingResult"],
    "training.kto": ["KTOConfig", "KTOTrainer"],
    "training.training_card": ["publish_model"],
    "training.reward": ["RewardConfig", "RewardTrainer"],
    "training.run": ["train"],
}

__all__ = [
    "DPOConfig",
    "DPOTrainer",
    "EncoderConfig",
    "FrozenEncoder",
    "KTOConfig",
    "KTOTrainer",
    "RewardConfig",
    "RewardTrainer",
    "TrainingResult",
    "VectorCache",
    "best_of",
    "generate",
    "publish_model",
    "synthesize",
    "train",
]


# Trainers of TRL that take no noise of rows here, and what does.
_OTHERS = {
    "CPO": "SimPO and CPO are the logistic loss of another margin: give that to losses.forward, or "
    "train with DPOTrainer",
    "ORPO": "ORPO also imitates `chosen`, so flipped rows teach what people rejected: train with "
    "DPOTrainer",
}


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            if home.startswith(("alignment", "training")):
                import_module("labelguard_trainer.training").check_installation()
            return getattr(import_module(f"labelguard_trainer.{home}"), name)
    why = _OTHERS.get(name.removesuffix("Trainer").removesuffix("Config"))
    hint = f": {why}" if why else ""
    raise AttributeError(f"module 'labelguard_trainer' has no attribute {name!r}{hint}")
