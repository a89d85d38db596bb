"""All that one `privatize` is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from labelguard.errors import PolicyError
from labelguard.ingest.sources import Input, typed
from labelguard.options import (
    FILE,
    NAMES_OR_PATHS,
    ReadingOptions,
    RunOptions,
    check,
    declared,
)
from labelguard.planner.horizon import Horizon
from labelguard.policy.request import PolicyRequest
from labelguard.project.project import Project
from labelguard.release.ingested import Ingested
from labelguard.release.intake import Intake
from labelguard.release.methods import AUTO, check_options, names, open_mechanism, options_of
from labelguard.release.methods.options import FeatureOptions
from labelguard.release.protocol import Mechanism


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest(RunOptions):
    """What one `privatize` is asked for: by which mechanism, at which cost, of which input, how.

    `mechanism` may be `auto`; `terms` are the options of a `PolicyRequest`, and `choices` those of
    the mechanism.
    """

    mechanism: str
    terms: Mapping[str, Any]
    choices: Mapping[str, Any]
    intake: Intake

    def __post_init__(self) -> None:
        Horizon.parse(self.recurring, self.duration)
        check(RunOptions, vars(self))
        if sum((self.once, self.uses is not None, self.recurring is not None)) > 1:
            raise PolicyError("give one of --once, --uses and --recurring")
        object.__setattr__(self, "output", Path(self.output) if self.output else None)
        if self.mechanism == AUTO:
            self.head()
        else:
            self.opened(self.mechanism)

    @property
    def periods(self) -> int:
        """For how many releases like this one a first policy is made."""
        horizon = Horizon.parse(self.recurring, self.duration)
        return horizon.releases if horizon else self.uses or 1

    @property
    def says_how_often(self) -> bool:
        """Whether it says for how many releases a first policy is made."""
        return self.once or self.uses is not None or self.recurring is not None

    def opened(self, name: str, features: str | None = None) -> Mechanism[Any]:
        """Mechanism `name` with its choices; `features` where none were asked for, if it takes any.

        Raises `PolicyError` for an option that it does not have, or a value out of range.
        """
        takes, choices = names(options_of(name)), dict(self.choices)
        if self.mechanism == AUTO:
            choices = {choice: value for choice, value in choices.items() if choice in takes}
        if features and "features" in takes:
            choices.setdefault("features", features)
        return open_mechanism(name, **choices)

    def head(self, features: str | None = None) -> FeatureOptions:
        """What is asked of heads, by whichever mechanism; `features` as in `opened`."""
        takes = {field.name for field in fields(FeatureOptions)}
        choices = {choice: value for choice, value in self.choices.items() if choice in takes}
        check(FeatureOptions, choices)
        return FeatureOptions(**({"features": features} if features else {}) | choices)

    def repeatable(self, mechanism: str, source: Input, home: Project) -> dict[str, Any]:
        """Return what `retrain --init` writes into a job; for the ledger alone, as it has paths.

        `input` are paths seen from the project's directory, none for what was in memory; without it
        the input is what was ingested of the `namespace`. `options` are how it was read, and those
        of the mechanism. None of it depends on what the input holds.
        """
        known, reading = home.columns.items(), {one: getattr(self.intake, one) for one in _INTAKE}
        columns = dict(role for role in self.intake.columns.items() if role not in known)
        public = list(self.terms.get("public_columns") or ())
        options = {**reading, "columns": columns, "public_columns": public}
        for one in declared(options_of(mechanism)).values():
            value = self.choices.get(one.name)
            path = one.metavar == FILE or (
                one.metavar in NAMES_OR_PATHS and Path(value or "").exists()
            )
            if path and value is not None:
                places = _places(value, home)
                value = places[0] if len(places) == 1 else places
            options[one.name] = value
        usual, place = vars(Intake()), {}
        if not isinstance(source, Ingested):
            place = {"input": _places(source, home)}
        plain = {n: v for n, v in options.items() if isinstance(v, str | float | int | list | dict)}
        options = {n: v for n, v in plain.items() if v not in ([], {}, usual.get(n))}
        return {"namespace": home.namespace, **place, "options": options}


def _places(source: Input, home: Project) -> list[str]:
    """Return paths and globs as seen from the project's directory; none for what is in memory."""
    paths = [Path(one) for one in typed(source) if one not in ("INPUT", "-")]
    here = home.state.parent
    return [os.path.relpath(Path(os.path.realpath(one.parent), one.name), here) for one in paths]


_TERMS, _OWN, _INTAKE = map(declared, (PolicyRequest, RunOptions, ReadingOptions))


def check_names(mechanism: str, options: Mapping[str, Any]) -> None:
    """Raise `PolicyError` for an option that neither `privatize` nor the mechanism has."""
    shared = (*_TERMS, *_OWN, *_INTAKE)
    own = [name for name, value in options.items() if name not in shared and value is not None]
    check_options(mechanism, own, beside=shared)


def request_release(home: Project, mechanism: str, options: Mapping[str, Any]) -> ReleaseRequest:
    """Return the request that `privatize` makes of its options; None means: by default.

    Raises `PolicyError` for an option that the mechanism does not have, or a value out of range.
    """
    check_names(mechanism, options)
    given = {name: value for name, value in options.items() if value is not None}
    terms, own, reading = (
        {name: given.pop(name) for name in group if name in given}
        for group in (_TERMS, _OWN, _INTAKE)
    )
    return ReleaseRequest(
        mechanism=mechanism, terms=terms, choices=given, intake=Intake.of(home, reading), **own
    )
