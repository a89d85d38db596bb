"""Prompts and responses as values, and the settings by which responses are drawn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from labelguard.analysis.reward import Content as Content
from labelguard.errors import LabelguardError


@dataclass(frozen=True)
class SamplingSettings:
    """The way in which responses are drawn.

    `temperature` 0 takes the likeliest token each time; `top_p` draws from the likeliest tokens
    that have this probability together.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise LabelguardError(f"max_new_tokens must be at least 1, found {self.max_new_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise LabelguardError(f"temperature must be 0 or more, found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise LabelguardError(f"top_p must be above 0 and at most 1, found {self.top_p}")

    def seed_of(self, part: int) -> int:
        """Return the seed, 31 bits, of one part of what is drawn."""
        digest = hashlib.sha256(f"{self.seed} {part}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1


def wrap_like_prompt(prompt: Content, text: str) -> Content:
    """Return a response of the kind of its prompt."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
