"""The few words that all packages share: defaults, progress, numbers, reasons, spelling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib.resources.abc import Traversable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import jinja2


# How often two labelers agree on a strict label, on public sets: where one number has to be shown.
DEFAULT_AGREEMENT = 0.73
AGREEMENT_HELP = (
    "How often two labelers agree on a strict label; on public sets .70 (chat answers), .73 "
    "(arguments), .80 (translations)"
)
DEFAULT_FEATURES = "length+style+minilm"
# What a forecast of accuracy cannot know, said beside each.
FORECAST_ASSUMPTION = (
    "the forecast assumes that preferences depend on these features, as on the public sets it was "
    "calibrated on; no label was read. If they do not, expect 50 of 100: public labels, or "
    "an evaluation (--mechanism evaluation), tell"
)

AUTO_FORMAT = "auto"
# The formats of inputs that have a name (`labelguard.inputs.formats`).
FORMAT_NAMES = (
    *("pairs", "rankings", "choices", "scores", "hh-rlhf", "helpsteer", "arena"),
    *("argilla", "label-studio", "prodigy"),
)

# Called with what is being done and, where it is known, the share of it that is done.
Progress: TypeAlias = Callable[[str, float | None], None]

# Canonical labels: the second side preferred, the first side preferred, a tie, none given.
LABEL_B, LABEL_A, LABEL_TIE, LABEL_SKIP = 0, 1, 2, 3


def no_progress(step: str, share: float | None) -> None:
    """Progress that nobody sees."""


def pluralize(number: int, noun: str) -> str:
    """A number with its noun: 1 release, 2 releases, 3 journal entries."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def tell_of_more_files(message: str, count: int) -> str:
    """Return what is wrong with a file, and in how many more files the same is."""
    return f"{message} (the same in {pluralize(count, 'more file')})" if count else message


def escape_controls(text: str) -> str:
    """Text in one line, with whatever could command a terminal, or turn its letters, escaped.

    Names of files and columns, and cards, come from anywhere.
    """
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


class Budgeted(Protocol):
    """Whatever has an ε and a δ."""

    @property
    def epsilon(self) -> float: ...

    @property
    def delta(self) -> float: ...


def format_budget(values: Mapping[str, Any] | Budgeted) -> str:
    """`epsilon` and `delta` as people write them: ε = 3, δ = 1e-5."""
    own = values if isinstance(values, Mapping) else vars(values)
    delta = f"{own['delta']:g}".replace("e-0", "e-")
    return f"ε = {own['epsilon']:g}, δ = {delta}"


def format_number(number: float) -> str:
    """Return a number as people write it, exactly: 3, 0.1, 1e-05."""
    return repr(float(number)).removesuffix(".0")


def read_template(
    file: Path | Traversable, filters: Mapping[str, Any] | None = None, **settings: Any
) -> jinja2.Template:
    """Return a template in a file, which refuses names without a value; `settings` are jinja's."""
    import jinja2

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, **settings
    )
    environment.filters |= filters or {}
    return environment.from_string(file.read_text(encoding="utf-8"))


# Reasons why no release counts a row or an answer.
GROUND_TRUTH, DRAFT = "ground truth", "draft"
# Public only where the policy says that blank labels are.
SKIP = "skip"
UNREADABLE = "not understood"
# Before the names of what was answered instead.
OTHER_CONTROLS = "results for other controls"
_REMEDIES = {
    GROUND_TRUTH: "Label Studio marks imported annotations as ground truth: import them with "
    '"ground_truth": false, or take the star off them',
    DRAFT: "drafts count once they are submitted",
    UNREADABLE: "see: labelguard hook dead-letters",
}


def describe_reason_counts(counts: Mapping[str, int]) -> str:
    """Say how many for which reason, and what to do: `2,000 (ground truth), 3 (draft); …`."""
    listed = ", ".join(f"{count:,} ({reason})" for reason, count in counts.items())
    remedies = (_REMEDIES[reason] for reason in counts if reason in _REMEDIES)
    return "; ".join([listed, *remedies])


P = ParamSpec("P")
R = TypeVar("R")


def suggest(name: str, candidates: Iterable[str], prefix: str = "") -> str:
    """Return the candidate that was probably meant, as a part of a message; empty if none is near.

    `prefix` is what is typed before it. A few letters are rather an abbreviation than misspelt.
    """
    from difflib import get_close_matches

    known = sorted(candidates)
    longer = [one for one in known if 1 < len(name) < 5 and one.startswith(name)]
    matches = sorted(longer, key=len) or get_close_matches(name, known, 1)
    return f" (did you mean {prefix + matches[0]!r}?)" if matches else ""


def suggest_misspelled_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """A function that tells of a keyword which it does not have which one was probably meant.

    Python says so itself from 3.13 on.
    """
    known = signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}"
                    f"{suggest(name, known)}"
                )
        return function(*args, **kwargs)

    return call
