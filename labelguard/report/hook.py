"""The state of a project's hook, in counts: what waits, and what its worker read from the tools."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Self

from labelguard import clock
from labelguard.answers.inbox import Inbox
from labelguard.answers.store import WorkerState
from labelguard.project.opening import OpenProject
from labelguard.text import pluralize

# Days without a reconciliation after which something needs doing.
_DAYS = 2


@dataclass(frozen=True)
class HookState:
    """Counts of what waits and of dead letters, and what the worker did.

    `overdue` says of each connector without a reconciliation for two days since when.
    """

    waiting: int
    letters: int
    worker: WorkerState
    overdue: dict[str, str]

    @classmethod
    def read(cls, opened: OpenProject) -> Self | None:
        """Read it; None for a project without a hook. Raises `LabelguardError` if it cannot."""
        home = opened.project
        inbox = Inbox.find(home.state, home.ledger_url, opened.keys)
        worker = WorkerState.read(home.state)
        if inbox is None:
            return None
        with contextlib.closing(inbox):
            waiting, letters = inbox.waiting(), inbox.count_letters()
        last = {name: one["since"] for name, one in worker.unreconciled.items()} | worker.reconciled
        today = clock.parse_time(clock.now()).date()
        overdue = {
            name: f"none succeeded since {at}"
            for name, at in sorted(last.items())
            if name in home.connectors and (today - date.fromisoformat(at)).days >= _DAYS
        }
        return cls(waiting, letters, worker, overdue)

    def reconciliations(self) -> Iterator[tuple[str, str]]:
        """Yield connectors with the day of the last reconciliation, and since when they fail."""
        done, failing = self.worker.reconciled, self.worker.unreconciled
        for name in sorted({*done, *failing}):
            fails = f" (attempts fail since {failing[name]['since']})" if name in failing else ""
            yield name, f"{done.get(name, 'never')}{fails}"

    def describe_troubles(self) -> Iterator[str]:
        """Yield what needs doing, as sentences that hold no text of a tool."""
        for name, why in self.overdue.items():
            yield (
                f"What the hook missed of {name} is not read from the tool, {why}: "
                f"`labelguard connect reconcile {name}` says why."
            )
        if self.letters:
            waits = "waits" if self.letters == 1 else "wait"
            letters = pluralize(self.letters, "dead letter")
            yield f"{letters} {waits}: `labelguard hook dead-letters list` says for which cause."
