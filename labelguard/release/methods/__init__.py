"""The mechanisms of `privatize`, by name: found by entry point, ours like those of other packages.

See `labelguard.release.methods.options` for the door, and `labelguard.release.protocol` for what is
behind it. Nothing heavy is loaded before a mechanism is opened.
"""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from labelguard.errors import PolicyError

if TYPE_CHECKING:
    from labelguard.release.methods.options import Options
    from labelguard.release.protocol import Mechanism

GROUP = "labelguard.mechanisms"
AUTO = "auto"


def installed() -> dict[str, EntryPoint]:
    """The doors of all mechanisms; randomized response first, which is the default."""
    doors = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name != "rr", entry.name))
    return {entry.name: entry for entry in doors}


def options_of(name: str) -> type[Options]:
    """The options dataclass of a mechanism; `PolicyError` for an unknown one."""
    doors = installed()
    if name not in doors:
        raise PolicyError(f"unknown mechanism {name!r}; available: {', '.join(doors) or 'none'}")
    found: type[Options] = _loaded(doors[name])
    return found


def open_mechanism(name: str, **choices: Any) -> Mechanism[Any]:
    """The mechanism `name` with its choices; None means: by default.

    Raises `PolicyError` for an unknown name, or a choice that the mechanism does not have.
    """
    options = options_of(name)
    known = [field.name for field in fields(options)]  # type: ignore[arg-type]
    given = {choice: value for choice, value in choices.items() if value is not None}
    for choice in given:
        if choice not in known:
            option = "--" + choice.replace("_", "-")
            raise PolicyError(f"{option} does not go with --mechanism {name}")
    chosen = options(**given)
    mechanism: Mechanism[Any] = _loaded(EntryPoint(name, chosen.mechanism, GROUP))(chosen)
    return mechanism


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except ImportError as error:
        raise PolicyError(f"mechanism {entry.name} cannot be loaded: {error}") from None
