"""The mechanisms of `privatize`, by name; each follows `labelguard.mechanisms.protocol`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from labelguard.errors import PolicyError
from labelguard.release.protocol import Mechanism

if TYPE_CHECKING:
    from labelguard.release.methods.featured import FeatureOptions

NAMES = ("rr", "props", "statistic")
AUTO = "auto"


def open_mechanism(name: str, **choices: Any) -> Mechanism:
    """The mechanism `name` with its choices; None means: by default.

    Raises `PolicyError` for an unknown name, or a choice that the mechanism does not have.
    """
    given = {choice: value for choice, value in choices.items() if value is not None}
    if name == "rr":
        from labelguard.release.methods.rr import RandomizedResponse

        _refuse(name, given, ())
        return RandomizedResponse()
    from labelguard.release.methods.featured import FeatureOptions

    if name == "statistic":
        from labelguard.release.methods.statistic import Teacher

        _refuse(name, given, [field.name for field in fields(FeatureOptions)])
        return Teacher(FeatureOptions(**given))
    if name == "props":
        from labelguard.release.methods.props import PropsOptions, Relabelling

        _refuse(name, given, [field.name for field in fields(PropsOptions)])
        return Relabelling(PropsOptions(**given))
    raise PolicyError(f"unknown mechanism {name!r}; this version has: {', '.join(NAMES)}")


def feature_options(choices: dict[str, Any]) -> FeatureOptions:
    """What `auto` needs of the choices of whatever mechanism it will take."""
    from labelguard.release.methods.featured import FeatureOptions

    names = [field.name for field in fields(FeatureOptions)]
    given = {name: choices[name] for name in names if choices.get(name) is not None}
    return FeatureOptions(**given)


def _refuse(name: str, given: dict[str, Any], known: list[str] | tuple[str, ...]) -> None:
    for choice in given:
        if choice not in known:
            option = "--" + choice.replace("_", "-")
            raise PolicyError(f"{option} does not go with --mechanism {name}")
