"""All that one `privatize` asks for."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from labelguard.errors import LabelguardError, PolicyError
from labelguard.ingest.sources import Input, typed
from labelguard.planner.horizon import Horizon
from labelguard.policy import policy
from labelguard.project.project import Project
from labelguard.release.ingested import Ingested
from labelguard.release.intake import Intake
from labelguard.release.methods import AUTO, check_options, names, open_mechanism, options_of
from labelguard.release.methods.options import FILE, NAMES_OR_PATHS, FeatureOptions
from labelguard.release.protocol import Mechanism


@dataclass(frozen=True)
class Request:
    """What a run is asked for: by which mechanism, at which cost, and how it treats its input.

    `mechanism` may be `auto`; `terms` are what a `policy.Request` may say beside the kind of event,
    and `choices` the options of the mechanism. A first policy is for this release alone (`once`,
    which is the default), for so many releases (`uses`), or for those that are `recurring` for the
    `duration`, each with as many new labels as this one. `exhausted`: labels of exhausted
    labelers stop the run or are left out. `again` draws the latest submission of every label anew,
    as a new event with a new charge. `accept_delta` allows a δ of 1 over the number of units, or
    more. `output` is a directory that gets a copy of the release, `workers` how many buckets are
    worked on at once.
    """

    mechanism: str
    terms: Mapping[str, Any]
    choices: Mapping[str, Any]
    intake: Intake
    once: bool = False
    uses: int | None = None
    recurring: str | None = None
    duration: str | None = None
    exhausted: Literal["refuse", "drop"] = "refuse"
    again: bool = False
    accept_delta: bool = False
    output: Path | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        Horizon.parse(self.recurring, self.duration)
        if sum((self.once, self.uses is not None, self.recurring is not None)) > 1:
            raise PolicyError("give one of --once, --uses and --recurring")
        if self.uses is not None and self.uses < 1:
            raise PolicyError(f"--uses must be at least 1, found {self.uses}")
        if self.exhausted not in ("refuse", "drop"):
            raise LabelguardError("exhausted must be one of refuse, drop")
        if self.workers is not None and self.workers < 1:
            raise LabelguardError(f"workers must be at least 1, found {self.workers}")
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
        for one in fields(options_of(mechanism)):  # type: ignore[arg-type]
            value, kind = self.choices.get(one.name), one.metadata["metavar"]
            path = kind == FILE or (kind in NAMES_OR_PATHS and Path(value or "").exists())
            if path and value is not None:
                places = _places(value, home)
                value = places[0] if len(places) == 1 else places
            options[one.name] = value
        usual, place = asdict(Intake()), {}
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


_OWN = (
    *("once", "uses", "recurring", "duration"),
    *("exhausted", "again", "accept_delta", "output", "workers"),
)
# The kind of event is the mechanism's to say, the shape of its noise the planner's, what choices
# are among the input's, how a run samples the mechanism's; `uses` are those of a statistic alone.
_NOT_ASKED = ("event", "uses", "ball", "choices", "sampling")
_TERMS = tuple(one.name for one in fields(policy.Request) if one.name not in _NOT_ASKED)
_INTAKE = tuple(one.name for one in fields(Intake))


def check_names(mechanism: str, options: Mapping[str, Any]) -> None:
    """Raise `PolicyError` for an option that neither `privatize` nor the mechanism has."""
    shared = (*_TERMS, *_OWN, *_INTAKE)
    own = [name for name, value in options.items() if name not in shared and value is not None]
    check_options(mechanism, own, beside=shared)


def requested(home: Project, mechanism: str, options: Mapping[str, Any]) -> Request:
    """The request that `privatize` makes of its options; what is nobody else's is the mechanism's.

    Raises `PolicyError` for an option that the mechanism does not have, or a value out of range.
    """
    check_names(mechanism, options)
    choices = dict(options)
    terms, own = _taken(_TERMS, choices), _taken(_OWN, choices)
    intake = Intake.of(home, _taken(_INTAKE, choices))
    given = {name: value for name, value in choices.items() if value is not None}
    return Request(mechanism, terms, given, intake, **own)


def _taken(names: Collection[str], options: dict[str, Any]) -> dict[str, Any]:
    """Those options, taken out; None means: by default."""
    found = {name: options.pop(name) for name in names if name in options}
    return {name: value for name, value in found.items() if value is not None}
