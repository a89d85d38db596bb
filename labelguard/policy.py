"""The policy of a project: what one labeler may lose over its lifetime. Written once, immutable."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Literal, Self, get_args

from labelguard.errors import PolicyError

Composition = Literal["exact", "advanced", "basic"]
Priced = Literal["rr", "statistic"]
"""What a policy prices: coins of randomized response (PROPS works on them), or statistics."""
Ties = Literal["coin", "ternary", "half", "drop", "zero"]
Unit = Literal["labeler", "item"]


@dataclass(frozen=True)
class Policy:
    """(ε, δ) of each labeler under `replace_labels`, and how labels are priced from it.

    `rr`: a labeler has k places (`max_labels_per_labeler`, or their own number of labels rounded up
    to 8, 16, 32, …); k coins at the per-label ε0 compose to at most (epsilon, delta).
    `statistic`: a labeler has `releases` places, each a statistic release that may use any number
    of their labels; that many Gaussian mechanisms compose to at most (epsilon, delta).
    """

    epsilon: float
    delta: float
    composition: Composition = "exact"
    ties: Ties = "coin"
    tie_status_public: bool = False
    unit: Unit = "labeler"
    max_labels_per_labeler: int | None = None
    mechanism: Priced = "rr"
    releases: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise PolicyError(f"epsilon must be a finite number above 0, found {self.epsilon}")
        if not (0 <= self.delta < 1):
            raise PolicyError(f"delta must be at least 0 and below 1, found {self.delta}")
        k = self.max_labels_per_labeler
        if k is not None and k < 1:
            raise PolicyError(f"max-labels-per-labeler must be at least 1, found {k}")
        for name, allowed in (
            ("mechanism", Priced),
            ("composition", Composition),
            ("ties", Ties),
            ("unit", Unit),
        ):
            if getattr(self, name) not in get_args(allowed):
                raise PolicyError(
                    f"{name} must be one of {', '.join(get_args(allowed))}, "
                    f"found {getattr(self, name)!r}"
                )
        if self.ties in ("half", "drop") and not self.tie_status_public:
            raise PolicyError(
                f"--ties {self.ties} shows which labels are ties; if that is public anyway, "
                "declare it with --tie-status-public, else use coin or ternary"
            )
        if self.ties == "ternary" and self.composition != "exact":
            raise PolicyError("--ties ternary is priced by exact composition only")
        if self.releases < 1:
            raise PolicyError(f"releases must be at least 1, found {self.releases}")
        self._check_mechanism()

    def _check_mechanism(self) -> None:
        """Refuse options of one mechanism in a policy of the other."""
        if self.mechanism == "rr":
            if self.ties == "zero" or self.releases != 1:
                raise PolicyError("--ties zero and --releases go with --mechanism statistic only")
            return
        if not self.delta > 0:
            raise PolicyError("the statistic's noise is Gaussian: it needs a delta above 0")
        if self.ties not in ("zero", "drop"):
            raise PolicyError(
                f"--ties {self.ties} goes with randomized response; in a statistic a tie adds "
                "nothing (zero), or, where tie status is public, may be dropped"
            )
        if self.max_labels_per_labeler is not None or self.composition != "exact":
            raise PolicyError(
                "a statistic takes all labels of a labeler, clipped, at an exact price: "
                "--max-labels-per-labeler and --composition go with randomized response"
            )

    def to_json(self) -> str:
        """Canonical JSON, as the ledger keeps it."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Request:
    """What a command asks for; None means: as the policy has it, or the default."""

    epsilon: float
    delta: float
    composition: Composition | None = None
    ties: Ties | None = None
    tie_status_public: bool | None = None
    unit: Unit | None = None
    max_labels_per_labeler: int | None = None
    mechanism: Priced = "rr"
    releases: int | None = None

    def __post_init__(self) -> None:
        # ε = 3 and ε = 3.0 are one request: it is recognised by how it is written down.
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.max_labels_per_labeler is not None:
            object.__setattr__(self, "max_labels_per_labeler", int(self.max_labels_per_labeler))

    def first_policy(self) -> Policy:
        """The policy that the first release of a project writes."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return Policy(**{"ties": "coin" if self.mechanism == "rr" else "zero"} | given)

    def under(self, policy: Policy) -> Policy:
        """The policy, if the request fits it; `PolicyError` where it contradicts it.

        ε and δ are judged when new labels are charged (`check_price`): labels that were released
        before keep their value whatever is asked.
        """
        replace(self.first_policy(), epsilon=policy.epsilon, delta=policy.delta)
        for name, value in asdict(self).items():
            fixed = getattr(policy, name)
            if name not in ("epsilon", "delta") and value is not None and value != fixed:
                option = name.replace("_", "-")
                if name == "max_labels_per_labeler" and fixed is None:
                    fixed = "own number of labels, rounded up"
                raise PolicyError(
                    f"this project's policy has {option} = {fixed}, fixed by its first release; "
                    f"asked: {value}; leave the option out or use another project"
                )
        return policy

    def check_price(self, policy: Policy) -> None:
        """Refuse to release new labels under a policy weaker than what was asked."""
        if policy.epsilon > self.epsilon or policy.delta > self.delta:
            raise PolicyError(
                f"this project's policy is ε = {policy.epsilon:g}, δ = {policy.delta:g}, fixed by "
                f"its first release; new labels cannot be released at the stricter "
                f"ε = {self.epsilon:g}, δ = {self.delta:g}; use another project for them"
            )
