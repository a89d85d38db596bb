"""Learning from releases: features of pairs by frozen encoders. Any TRL trainer reads a release.

    from labelguard.learning.features import open_provider
    provider = open_provider("hf:sentence-transformers/all-MiniLM-L6-v2")

Importing it is light; torch and transformers load at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelguard_trainer.features.cache import VectorCache
    from labelguard_trainer.features.encoder import EncoderConfig, FrozenEncoder

_HOMES = {
    "EncoderConfig": "labelguard_trainer.features.encoder",
    "FrozenEncoder": "labelguard_trainer.features.encoder",
    "VectorCache": "labelguard_trainer.features.cache",
}

__all__ = ["EncoderConfig", "FrozenEncoder", "VectorCache"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'labelguard_trainer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
