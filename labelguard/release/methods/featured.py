"""What the mechanisms that use features can be asked: features, shape, further pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labelguard.errors import PolicyError
from labelguard.ingest.sources import Input
from labelguard.terms import DEFAULT_AGREEMENT, DEFAULT_FEATURES


@dataclass(frozen=True)
class FeatureOptions:
    """Options of `statistic` and `props`; what is None is chosen by simulation on public data.

    `also` are further pairs without labels, which the head labels too.
    """

    features: str = DEFAULT_FEATURES
    components: int | None = None
    whitening: float | None = None
    floor: float | None = None
    clip_quantile: float | None = None
    ridge: float | None = None
    agreement: float = DEFAULT_AGREEMENT
    also: Input | None = None

    def __post_init__(self) -> None:
        if not 0.55 <= self.agreement <= 0.9:
            raise PolicyError(f"agreement must be in [0.55, 0.9], found {self.agreement}")

    def given(self) -> dict[str, Any]:
        """The parts of a `Shape` that are fixed by the request."""
        names = ("components", "whitening", "floor", "clip_quantile", "ridge")
        asked = {name: getattr(self, name) for name in names}
        return {name: value for name, value in asked.items() if value is not None}

    def settings(self) -> dict[str, Any]:
        """For the request's idempotency key; the further pairs are digested when they are read."""
        return {"features": self.features, "agreement": self.agreement, **self.given()}
