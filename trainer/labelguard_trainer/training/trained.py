"""What a training comes to."""

from __future__ import annotations

from dataclasses import dataclass

from labelguard_trainer.training.evaluate import Evaluation

__all__ = ["Trained"]


@dataclass(frozen=True)
class Trained:
    """A model that was trained."""

    path: str
    """its directory"""
    kind: str
    """dpo or reward"""
    release: str | None
    """the release that it learned from; null if that was raw labels"""
    epsilon: float | None
    """ε of the release, which is the model's too if its base is public; null for raw labels"""
    delta: float | None
    """its δ"""
    unit: str | None
    """what it protects as a whole"""
    model: str
    """the model it began from"""
    loss: str
    """the loss of rows: forward, robust, soft or plain"""
    rows: int
    """rows it was trained on"""
    left_out: int
    """rows whose sides are equal once they are cut to length"""
    held_out: int
    """rows kept out of training, for evaluation"""
    evaluated: int
    """rows of these that were evaluated, always the same ones"""
    steps: int
    """steps of the optimizer, those before an interruption among them"""
    resumed: bool
    """whether an interrupted training was finished"""
    evaluation: Evaluation
    """what can be told of its quality"""
    notes: list[str]
    """what the user should know"""
