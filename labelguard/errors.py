"""The errors labelguard raises, each with the exit code its command ends with.

A message says what is wrong, where, and what to do, in one line. It never holds a label. It is
written once, with options as they are typed (`--unit item`), and read where it is raised: under the
command line so, in Python with the keywords that mean the same (`unit="item"`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

_typed: ContextVar[bool] = ContextVar("typed", default=False)


@contextlib.contextmanager
def as_typed() -> Iterator[None]:
    """Let errors that are read in here name options as the command line does."""
    before = _typed.set(True)
    try:
        yield
    finally:
        _typed.reset(before)


class LabelguardError(Exception):
    """Anything labelguard refuses to do. `exit_code` is that of the command line."""

    exit_code = 1

    def __str__(self) -> str:
        text = super().__str__()
        return text if _typed.get() else _OPTIONS.sub(_keyword, text)


_KEYWORDS = {"source": "namespace", "for": "duration", "public-column": "public_columns"}
"""Options that are called otherwise in Python."""
_FLAGS = (
    "accept-delta",
    "accept-little-use",
    "accept-unproven",
    "again",
    "assignment-reactive",
    "never-seen",
    "non-private",
    "nothing-since",
    "once",
    "tie-status-public",
)
"""Options without a value."""
_OPTIONS = re.compile(
    # A command to type is left as it is, up to the end of its sentence.
    r"(?P<command>\blabelguard [a-z](?:[^,;:()`]|[,:](?=\S))*)"
    # What follows these is one of their choices, unless a verb does.
    r"|(?<![\w-])--(?P<choice>bad-rows|exhausted|format|label-values|learner|mechanism"
    r"|public-column|recurring|skips|split|ties|unit) "
    r"(?!and |expects |goes |is |must |names |than |\w+=)(?P<chosen>[\w.-]*\w)"
    r"|(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)"
    r"(?: (?P<pairs>[\w:]+=[^\s,;:()]*(?:[,:][^\s,;:()]+)*)"  # name=value,name=value
    r"| (?P<value>[A-Z][A-Z_]*\b|[0-9](?:[\w.-]*\w)?))?"  # a placeholder or a number
)


_INIT = re.compile(r"labelguard init(?: (?P<where>[^-].*))?")


def _keyword(found: re.Match[str]) -> str:
    """What was found as Python has it; a command, but for `init`, as it is."""
    if found["command"]:
        return _command(found["command"])
    option, pairs = found["choice"] or found["name"], found["pairs"]
    value = found["chosen"] or found["value"]
    if option == "labeler-column" and value:
        return f'columns={{"labeler_id": {_value(value)}}}'
    if option == "columns" and pairs:
        roles = (pair.partition("=") for pair in pairs.split(","))
        return "columns={" + ", ".join(f'"{role}": {_value(to)}' for role, _, to in roles) + "}"
    if option == "allow" and pairs:
        return f'allow=["{pairs}"]'
    name = _KEYWORDS.get(option, option.replace("-", "_"))
    if option in _FLAGS and not found.string.startswith(" =", found.end()):
        return f"{name}=True"
    return f"{name}={_value(pairs or value)}" if pairs or value else name


def _command(text: str) -> str:
    """A command as it is, but for the one that Python has for all who begin."""
    found = _INIT.fullmatch(text)
    if found is None:
        return text
    return f'lg.init("{found["where"]}")' if found["where"] else "lg.init()"


def _value(text: str) -> str:
    """A placeholder or a number as it is, else a string."""
    return text if re.fullmatch(r"[A-Z_]+|[0-9.e+-]+", text) else f'"{text}"'


class InvalidLabels(LabelguardError):
    """The input is not a table of preference labels: which file, row and column, and why."""


class NotAnswered(InvalidLabels):
    """The question that is meant was not answered once in an export, or there is none."""


class OutsideDomain(InvalidLabels):
    """A label of a file is outside the domain: the one error that labels decide."""


class NobodyOfPart(InvalidLabels):
    """Everybody in the input is held out where labels are to train, or nobody is to evaluate."""


class NothingIngested(InvalidLabels):
    """No input was named, and nothing of the source that is meant was ingested."""

    exit_code = 2


class ProjectError(LabelguardError):
    """The project directory is missing, not writable, or not what it should be."""


class NoProject(ProjectError):
    """There is no project, neither where one was named nor upwards."""


class KeyProblem(LabelguardError):
    """A key is missing, damaged, foreign, or readable by others. Keys are never regenerated."""


class PolicyError(LabelguardError):
    """The request contradicts the project's policy, which never changes silently."""


class NotAgreed(LabelguardError):
    """Somebody said no, or nobody could be asked; nothing was done."""

    exit_code = 2


class LedgerError(LabelguardError):
    """The ledger cannot be read or written, or its records do not fit together."""


class ConnectorError(LabelguardError):
    """An annotation tool cannot be reached or answers something unexpected."""


class BudgetExceeded(LabelguardError):
    """Labelers lack allowance for what was asked; nothing was charged or released.

    `asked` and `left` are counts of labels, summed over the labelers that fall short.
    """

    exit_code = 3

    def __init__(self, message: str, *, asked: int, left: int) -> None:
        super().__init__(message)
        self.asked = asked
        self.left = left

    def __reduce__(self) -> tuple[Any, ...]:  # as from another process: args are no keywords
        return partial(type(self), asked=self.asked, left=self.left), self.args


class ProjectBusy(LabelguardError):
    """Another labelguard job works in this project."""

    exit_code = 4
