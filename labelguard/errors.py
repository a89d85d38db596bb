"""The errors labelguard raises, each with the exit code its command ends with.

A message says what is wrong, where, and what to do, in one line. It never holds a label. Options
are named as they are typed (`--max-labels-per-labeler`); in Python the keyword is the same word
(`max_labels_per_labeler`).
"""

from __future__ import annotations

from functools import partial
from typing import Any


class LabelguardError(Exception):
    """Anything labelguard refuses to do. `exit_code` is that of the command line."""

    exit_code = 1


class InvalidLabels(LabelguardError):
    """The input is not a table of preference labels: which file, row and column, and why."""


class NotAnswered(InvalidLabels):
    """The question that is meant was not answered once in an export, or there is none."""


class NoCoding(InvalidLabels):
    """Nothing says what the values of a column of labels mean."""


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


class GoneFromTool(ConnectorError):
    """The tool has no such project or data set, or this key may not see it any more."""


class BudgetExceeded(LabelguardError):
    """Labelers lack allowance for what was requested; nothing was charged or released.

    `requested` and `left` are counts of labels, summed over the labelers that fall short.
    """

    exit_code = 3

    def __init__(self, message: str, *, requested: int, left: int) -> None:
        super().__init__(message)
        self.requested = requested
        self.left = left

    def __reduce__(self) -> tuple[Any, ...]:  # as from another process: args are no keywords
        return partial(type(self), requested=self.requested, left=self.left), self.args


class ProjectBusy(LabelguardError):
    """Another labelguard job works in this project."""

    exit_code = 4
