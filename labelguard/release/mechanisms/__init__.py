"""The mechanisms of `privatize`, by name: found by entry point, ours like those of other packages.

See `labelguard.release.mechanisms.options` for options, and `labelguard.release.protocol` for what
a mechanism does. Nothing heavy is loaded before a mechanism is opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import is_dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from labelguard import extras
from labelguard.errors import LabelguardError, PolicyError
from labelguard.options import Option, check_option_values, option_declarations
from labelguard.text import suggest

if TYPE_CHECKING:
    from labelguard.release.mechanisms.options import Options
    from labelguard.release.protocol import Mechanism

GROUP = extras.MECHANISMS
AUTO = "auto"


def list_mechanisms() -> list[str]:
    """Return the names of all mechanisms; randomized response first."""
    return sorted(extras.list_entry_points(GROUP), key=lambda name: (name != "rr", name))


def load_options_class(name: str) -> type[Options]:
    """Return the options dataclass of a mechanism; raise `PolicyError` for an unknown one.

    Raises `LabelguardError` if packages bring several by that name.
    """
    entry = extras.find_entry_point(GROUP, name)
    if entry is None:
        known = list_mechanisms()
        near = suggest(name, [*known, AUTO])
        raise PolicyError(
            f"unknown mechanism {name!r}{near}; available: {', '.join(known) or 'none'}"
        )
    options: type[Options] = _load_entry_point(entry)
    if not is_dataclass(options):
        raise PolicyError(f"mechanism {name} cannot be loaded: {entry.value} is no dataclass")
    return options


def open_mechanism(name: str, /, **choices: Any) -> Mechanism[Any]:
    """Return the mechanism `name` with its choices; None means: by default.

    Raises `PolicyError` for an unknown name, or a choice that the mechanism does not have.
    """
    choices = {choice: value for choice, value in choices.items() if value is not None}
    check_options(name, choices)
    options_class = load_options_class(name)
    check_option_values(options_class, choices)
    options = options_class(**choices)
    entry = EntryPoint(name, options.mechanism, GROUP)
    mechanism: Mechanism[Any] = _load_entry_point(entry)(options)
    return mechanism


def check_options(mechanism: str, choices: Collection[str], beside: Collection[str] = ()) -> None:
    """Raise `PolicyError` for a choice that a mechanism lacks; that no mechanism has, for `auto`.

    One that nothing has is compared with all there are, and with what there is `beside` them.
    """
    known = list_option_names(mechanism) if mechanism != AUTO else set(collect_options())
    for choice in choices:
        if choice in known:
            continue
        if choice not in collect_options():
            raise PolicyError(f"unknown option {choice!r}{suggest(choice, {*known, *beside})}")
        option = "--" + choice.replace("_", "-")
        raise PolicyError(f"{option} does not go with --mechanism {mechanism}")


def list_option_names(mechanism: str) -> set[str]:
    """Return the names of a mechanism's options; raises as `load_options_class`."""
    return set(option_declarations(load_options_class(mechanism)))


def collect_options() -> dict[str, tuple[list[str], Option]]:
    """Return the options of all installed mechanisms by name, and which mechanisms have them.

    A mechanism that cannot be loaded has none.
    """
    options: dict[str, tuple[list[str], Option]] = {}
    for mechanism in list_mechanisms():
        with contextlib.suppress(LabelguardError):
            for name, option in option_declarations(load_options_class(mechanism)).items():
                options.setdefault(name, ([], option))[0].append(mechanism)
    return options


def _load_entry_point(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise PolicyError(f"mechanism {entry.name} cannot be loaded: {error}") from None
