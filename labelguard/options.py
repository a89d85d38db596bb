"""Options, each declared once: as a field of a dataclass, with its help.

The command line, job.yaml, the typed keywords of `privatize` and the reference pages are made of
these fields, or compared with them. A field without `option` is none: nobody types it.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from labelguard.errors import PolicyError
from labelguard.text import AUTO_FORMAT, FORMAT_NAMES

# How options say that they are a path (`metavar`).
FILE, NAMES_OR_PATHS = "FILE", ("ID_OR_PATH", "RELEASE")

Exhausted = Literal["refuse", "drop"]
BadRows = Literal["stop", "quarantine"]
Recurrence = Literal["daily", "weekly", "monthly"]


def option(
    text: str,
    *,
    default: Any = None,
    default_factory: Callable[[], Any] | None = None,
    choices: Sequence[str] = (),
    metavar: str | None = None,
    flag: str | None = None,
    least: int | None = None,
    in_jobs: bool = False,
) -> Any:
    """Return a field of a dataclass that is an option; `text` is its help.

    Its type is the field's, without None; a `Literal` has choices, as what is typed may have. A
    `metavar` FILE is a path, ID_OR_PATH and RELEASE may be one: in a file of settings relative to
    that file. `flag` is what is typed where that is not the field's name, `least` the smallest
    number. What is `in_jobs` may be repeated every night: it is neither fixed by the policy in
    force nor agrees to anything.
    """
    declaration: dict[str, Any] = {"text": text, "choices": tuple(choices), "metavar": metavar}
    declaration |= {"flag": flag, "least": least, "in_jobs": in_jobs}
    value: Any = {"default_factory": default_factory} if default_factory else {"default": default}
    return field(**value, metadata={"option": declaration})


@dataclass(frozen=True)
class Option:
    """An option as it was declared: `kind` makes a value of what is typed."""

    name: str
    kind: type
    default: Any
    text: str
    choices: tuple[str, ...]
    metavar: str | None
    flag: str
    least: int | None
    in_jobs: bool
    # whether it may be given several times
    many: bool
    # whether its value is a table of texts
    table: bool

    def check(self, value: Any) -> None:
        """Raise `PolicyError` for a value of another type, none of the choices, or too small."""
        if value is None:
            return
        number = isinstance(value, Integral if self.kind is int else Real)
        if self.kind in (int, float) and (not number or isinstance(value, bool)):
            what = "a whole number" if self.kind is int else "a number"
            raise PolicyError(f"{self.flag} expects {what}, found {type(value).__name__}")
        if self.choices and value not in map(self.kind, self.choices):
            raise PolicyError(f"{self.flag} must be one of {', '.join(self.choices)}")
        if self.least is not None and value < self.least:
            raise PolicyError(f"{self.flag} must be at least {self.least}, found {value}")


@functools.cache
def option_declarations(kind: Any) -> Mapping[str, Option]:
    """Return the options that a dataclass declares, by name, in their order."""
    types_of = typing.get_type_hints(kind)
    return {
        one.name: _make_declaration(one, types_of[one.name])
        for one in fields(kind)
        if "option" in one.metadata
    }


def check_option_values(kind: Any, values: Mapping[str, Any]) -> None:
    """Raise `PolicyError` for the first value that its declaration in a dataclass refuses."""
    for name, one in option_declarations(kind).items():
        one.check(values.get(name))


def _make_declaration(one: Field[Any], hint: Any) -> Option:
    parts = list(_list_union_members(hint))
    first = parts[0]
    origin, inner = typing.get_origin(first), typing.get_args(first)
    metadata = dict(one.metadata["option"])
    kind = first
    if origin is Literal:
        kind = type(inner[0])
        metadata["choices"] = metadata["choices"] or inner
    elif origin is not None or first is Any:
        kind = str
    default = None if one.default is MISSING else one.default
    metadata["flag"] = metadata["flag"] or "--" + one.name.replace("_", "-")
    return Option(
        one.name,
        kind,
        default,
        many=origin is tuple,
        table=isinstance(origin, type) and issubclass(origin, Mapping),
        **metadata,
    )


def _list_union_members(hint: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type itself; not None."""
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    for one in typing.get_args(hint) if union else (hint,):
        if one is not type(None):
            yield one


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Options for reading an input, in Python `lg.Reading`: one for several calls.

    Example:
        >>> read = lg.Reading(format="pairs", label_values="1-0")
        >>> lg.plan("labels.parquet", reading=read, epsilons=[3], features="length")
        PlanResult(30 labelers, 900 labels of 200 pairs; δ = 1e-05; ε = 3: statistic)
    """

    columns: Mapping[str, str] = option(
        "Names of your columns, for example labeler_id=worker,prompt=question.",
        default_factory=dict,
        metavar="ROLE=NAME,...",
        in_jobs=True,
    )
    label_values: str | Mapping[str, str | Sequence[str]] | None = option(
        "What labels mean, what stands for the first response first: 1-0 or 0-1, 1-2, true-false, "
        "a-b, left-right, a scale (1..7, -3..3), or a=VALUE,b=VALUE[,tie=VALUE][,skip=VALUE] with "
        "| between several values; where a label names the system that won, "
        "a=@COLUMN,b=@COLUMN. Needed unless words name a side. Of choices: first=0 or first=1.",
        metavar="CODING",
        in_jobs=True,
    )
    format: str = option(
        "Format of INPUT; auto: by the names and types of its columns.",
        default=AUTO_FORMAT,
        choices=(AUTO_FORMAT, *FORMAT_NAMES),
        in_jobs=True,
    )
    ignore_columns: tuple[str, ...] = option(
        "Columns that look like a part of the prompt and are none; otherwise a first release stops "
        "at them.",
        default=(),
        metavar="NAME,...",
        in_jobs=True,
    )
    split: tuple[str, ...] | None = option(
        "Which split to read of a dataset that has several: train, test, …; several times, or all.",
        metavar="NAME",
        in_jobs=True,
    )
    question: str | None = option(
        "Question asked about every pair; answers to several questions about one pair are "
        "several labels. For an export with several questions: the one to read.",
        metavar="NAME",
        in_jobs=True,
    )
    drop_members: tuple[str, ...] | None = option(
        "Members of messages and of their parts to leave out unread, in prompts and responses "
        "alike: timestamp,id.",
        metavar="NAME,...",
        in_jobs=True,
    )
    bad_rows: BadRows = option(
        "Stop at rows that cannot be used, or leave them out; privatize sets them aside in the "
        "project.",
        default="stop",
        in_jobs=True,
    )
    max_input_bytes: int | None = option(
        "Stop when the input's rows take more bytes than this, unpacked; default: 1 GiB and "
        "200 times the size of the files.",
        metavar="N",
        least=1,
        in_jobs=True,
    )


# What `labelguard` calls it.
Reading = ReadingOptions


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """For how many releases a first policy is made, and how a release is run.

    A first policy is for this release alone (`once`), for so many releases (`uses`), or for those
    that are `recurring` for the `duration`, each with as many new labels as this one.
    """

    once: bool = option(
        "No more labels of the same people will come: a project's first release may spend all "
        "of ε. Without a terminal a first release needs one of --once, --uses and --recurring.",
        default=False,
    )
    accept_little_use: bool = option(
        "Make a first release that `labelguard plan` does not recommend; --yes is not enough.",
        default=False,
    )
    uses: int | None = option(
        "K releases like this one may use a labeler's labels, and share ε.", metavar="K", least=1
    )
    recurring: Recurrence | None = option(
        "As --uses, for releases that come again and again; with --for."
    )
    duration: str | None = option(
        "How long they recur: 90d, 26w, 6m, 1y.", metavar="TIME", flag="--for"
    )
    max_labels_per_labeler: int | None = option(
        "The most labels of each labeler in this release, chosen by a keyed hash; released ones "
        "stay. A matter of quality: at one price each of few labels is randomized less.",
        metavar="M",
        least=1,
        in_jobs=True,
    )
    exhausted: Exhausted = option(
        "Refuse when labelers lack allowance, or leave those labels out.", default="refuse"
    )
    again: bool = option("Draw released labels anew: a new event, a new charge.", default=False)
    accept_delta: bool = option(
        "Accept a δ of 1 over the number of labelers charged, or more.", default=False
    )
    output: Path | None = option("Copy the release to DIR.", metavar="DIR")
    engine: str = option(
        "Where files are read, texts encoded and buckets processed: threads of this process "
        "(local), processes of this machine, or a cluster of Ray whose workers see the "
        "project and its inputs under the same paths. The output is the same.",
        metavar="local|processes|ray",
        default="local",
        in_jobs=True,
    )
    address: str | None = option(
        "Where the cluster is: auto or HOST:PORT of Ray; default: one that "
        "is started on this machine.",
        metavar="ADDRESS",
        in_jobs=True,
    )
    buckets: int = option(
        "Parts that labels are split into, a power of 2: memory is bounded by one of them for each "
        "worker. May change from release to release. With more than 64 the rows of a release are "
        "in as many files.",
        metavar="N",
        default=16,
        in_jobs=True,
    )
    workers: int | None = option(
        "How many are processed at once on this machine; default: one per core. The output is the "
        "same.",
        least=1,
        in_jobs=True,
    )
