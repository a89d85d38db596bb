"""Checks of an installation, a project and its connectors, each with what to do if it fails."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelguard import extras
from labelguard.answers import connector as connectors
from labelguard.answers.connector import Settings
from labelguard.answers.store import explain_gone
from labelguard.configuration.project_file import FILE
from labelguard.errors import InvalidLabels, LabelguardError, NoProject, ProjectError
from labelguard.project import attempts, retention
from labelguard.project.opening import OpenProject, locate_project
from labelguard.report.facts import HookState
from labelguard.text import LABEL_SKIP, OTHER_CONTROLS, SKIP, pluralize

if TYPE_CHECKING:
    import pyarrow as pa

    from labelguard.project.opening import Where

# Answers of a tool that are read, and letters of a content that are shown.
ANSWERS = 10
_SHOWN = 60
NO_ANSWERS = "the tool holds no answers yet: address, key and project are right; check again later"
_CORE = (
    *("duckdb", "polars", "pyarrow", "numpy"),
    *("dp-accounting", "sqlalchemy", "cryptography", "scikit-learn"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    # what was looked at
    name: str
    # whether all is well
    ok: bool
    # what was found, or what to do
    detail: str
    # whether it is well for now, and somebody should look
    notice: bool = False


def check_installation(project: Where) -> list[Finding]:
    """Return all checks; a missing project is reported, not an error, unless it was named."""
    checks = [
        Finding("python", sys.version_info >= (3, 11), platform.python_version()),
        Finding("system", os.name == "posix", platform.system()),
        *(_check_package(name) for name in _CORE),
        Finding("extras", True, _list_installed_extras()),
        _make_finding("randomized response", _check_accounting),
    ]
    return [*_release_failures(project), *checks, *_check_project(project)]


def _release_failures(project: Where) -> list[Finding]:
    """Return a finding where releases fail, a notice where the input is why; else none."""
    with contextlib.suppress(ProjectError):  # which a check below tells
        home = locate_project(project)
        state = attempts.read_attempts(home)
        if state.failure_text:
            by_input, where = state.reason == "input", home.state / attempts.FILE
            why = f"; {where} has its message" if by_input else f": {state.message}"
            detail = f"{state.failure_text}{why}"
            return [Finding("releases", by_input, detail, notice=by_input)]
    return []


def _check_package(name: str) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "not installed; install labelguard again")


def _list_installed_extras() -> str:
    names = importlib.metadata.metadata("labelguard").get_all("Provides-Extra") or []
    installed = [name for name in names if name != "all" and not extras.list_missing_packages(name)]
    return ", ".join(installed) or "none installed"


def _check_accounting() -> str:
    from labelguard.accounting import gaussian
    from labelguard.accounting import randomized_response as rr

    per_label = rr.calibrate(3.0, 1e-5, 50)
    if abs(per_label - 0.104592) > 1e-6:
        raise LabelguardError(f"ε0 for ε=3, δ=1e-5, k=50 is {per_label}, expected 0.104592")
    noise = gaussian.calibrate(1.0, 1e-5)
    if abs(noise - 3.730632) > 1e-6:
        raise LabelguardError(f"σ for ε=1, δ=1e-5 is {noise}, expected 3.730632")
    return f"ε=3, δ=1e-5, 50 labels: ε = {per_label:.6f} each"


def _check_project(project: Where) -> list[Finding]:
    from labelguard.budget.events import find_event_kind
    from labelguard.project.opening import IGNORE
    from labelguard.report import overview

    try:
        home = locate_project(project)
    except NoProject as error:
        explicit = project is not None or "LABELGUARD_PROJECT" in os.environ
        return [Finding("project", not explicit, str(error) if explicit else "none here")]
    except ProjectError as error:
        return [Finding("project", False, str(error))]

    def check_writable() -> str:
        if not os.access(home.state, os.W_OK):
            raise ProjectError(f"{home.state} is not writable")
        ignored = home.state / IGNORE
        if not ignored.is_file() or ignored.read_text(errors="replace").split() != ["*"]:
            raise ProjectError(f"git would add keys and labels: write one line, *, to {ignored}")
        return str(home.state)

    def check_keys() -> str:
        OpenProject.open(home)
        return f"{home.keys}: present, private, and those of the ledger"

    def check_ledger() -> str:
        verdict = overview.verify(home)
        if verdict.fault:
            raise LabelguardError(verdict.fault)
        entries = pluralize(verdict.journal_entries, "journal entry")
        return f"{entries}, {pluralize(verdict.releases, 'release')}"

    def check_maps() -> str:
        opened = OpenProject.open(home)
        digests = {record.id: record.map for record in opened.ledger.releases.all() if record.map}
        opened.private_map.check(digests)
        return f"{pluralize(len(digests), 'private map')} as drawn"

    def check_answers() -> str | Finding:
        opened = OpenProject.open(home)
        broken = opened.answers.find_fault()
        if broken:
            raise ProjectError(broken)
        held = opened.answers.count_stored()
        settings = connectors.read_all_settings(home.connectors)
        for one in settings.values():
            connectors.open_connector(one)  # which checks its own options
        opened.answers.check_readings()
        names = ", ".join(sorted(settings)) or "none"
        segments = f"{pluralize(held.answers, 'row')} in {pluralize(held.segments, 'sealed file')}"
        detail = f"{segments}, {pluralize(held.waiting, 'answer')} waiting; connectors: {names}"
        waits = [why] if (why := retention.explain_wait(opened)) else []
        gone = map(explain_gone, opened.answers.list_gone())
        notices = [*gone, *waits]
        text = "; ".join([detail, *notices])
        return Finding("ingested answers", True, text, notice=bool(notices))

    def check_sources() -> str | Finding:
        opened = OpenProject.open(home)
        declared = [f"{one.name} ({one.people})" for one in opened.ledger.people.sources()]
        held = list(opened.answers.explain_held_sources().values())
        detail = "; ".join([", ".join(declared) or "none yet: the first release makes one", *held])
        return Finding("sources", True, detail, notice=bool(held))

    def check_hook() -> str | Finding:
        state = HookState.read(OpenProject.open(home))
        if state is None:
            return "none so far"
        failing = state.worker.unreconciled
        why = {name: one["why"] for name, one in failing.items() if name in home.connectors}
        overdue = [
            f"reconciliation of {name}: {since}; {why.get(name, 'no worker runs')}"
            for name, since in state.overdue.items()
        ]
        if overdue:
            raise LabelguardError("; ".join(overdue))
        days = [f"{name} reconciled: {when}" for name, when in state.worker.list_reconciliations()]
        letters = pluralize(state.letters, "dead letter")
        ignored = [f"{name} ignores deliveries: {reason}" for name, reason in state.ignored.items()]
        lines = [*days, *why.values(), *ignored, f"{letters} (labelguard hook dead-letters)"]
        return Finding("deliveries", True, "; ".join(lines), notice=bool(why or ignored))

    def check_budget() -> str | Finding:
        known = overview.read_budget(home)
        if known.policy is None:
            return "no policy is in force"
        unit = known.policy.unit
        lines = [
            f"{pluralize(one.exhausted_labelers, unit)} with no {find_event_kind(one.event).noun} "
            "left: their new labels are not released"
            for one in known.allowances
            if one.exhausted_labelers and unit != "item"  # contents are labelled once
        ]
        detail = "; ".join(lines) or f"policy {known.policy.name}: all have something left"
        return Finding("budget", True, detail, notice=bool(lines))

    checks = {
        "project": check_writable,
        "keys": check_keys,
        "ledger": check_ledger,
        "private maps": check_maps,
        "sources": check_sources,
        "ingested answers": check_answers,
        "deliveries": check_hook,
        "budget": check_budget,
    }
    return _refer_repeats_to_first([_make_finding(name, work) for name, work in checks.items()])


def _refer_repeats_to_first(findings: list[Finding]) -> list[Finding]:
    """Return the findings; one that repeats an earlier detail refers to the check that has it."""
    first = {one.detail: one.name for one in reversed(findings)}
    return [
        one
        if one.ok or first[one.detail] == one.name
        else replace(one, detail=f"not checked: see {first[one.detail]}")
        for one in findings
    ]


def _make_finding(name: str, work: Callable[[], str | Finding]) -> Finding:
    try:
        shown = work()
        return Finding(name, True, shown) if isinstance(shown, str) else shown
    except LabelguardError as error:
        return Finding(name, False, str(error))


@dataclass(frozen=True)
class ToolComparison:
    """One comparison that was understood; without what was answered."""

    # who answered, by the tool's id
    labeler: str
    # how the prompt begins
    prompt: str
    # how the two responses begin, in the order of their bytes
    responses: list[str]
    # why it cannot be used
    fault: str | None


@dataclass(frozen=True)
class ConnectorCheck:
    """The answers of a tool as a connector understands them."""

    # its name
    connector: str
    # the tool
    kind: str
    # whose labelers these are
    source: str
    # what the tool says of the project or data set
    about: Mapping[str, str]
    # what is read, where several things were asked
    question: str | None
    # answers that were looked at
    answers: int
    # comparisons that were skipped
    skipped: int
    # what was compared in them
    comparisons: list[ToolComparison]
    # answers that no release counts, by reason; skips have a count of their own
    left_out: Mapping[str, int]
    # what to settle before the first release
    notes: list[str]


def check_connector(name: str, project: Where = None) -> ConnectorCheck:
    """Read the first answers of a tool, and store nothing.

    Raises `ConnectorError` if the tool cannot be reached, `InvalidLabels` if its tasks cannot be
    read as labelguard.toml says.
    """
    from labelguard.inputs.columns import Reading
    from labelguard.inputs.staging import read_canonical_rows

    opened = OpenProject.open(project)
    settings = connectors.read_settings(opened.project.connectors, name)
    opened.answers.check_reading(settings)
    tool = connectors.open_connector(settings)
    about = tool.about()
    pulled = chain.from_iterable(page.answers for page in tool.pull())
    answers = list(islice(pulled, ANSWERS))
    if not answers:
        _check_question(settings, about)
    with tempfile.TemporaryDirectory(prefix="labelguard-") as directory:
        path = Path(directory) / f"{name}.jsonl"
        path.touch(mode=0o600)
        # What answers something else would be read as a skip.
        bodies = [one.body for one in answers if not one.left_out.startswith(OTHER_CONTROLS)]
        path.write_text("".join(f"{body}\n" for body in bodies))
        record = opened.ledger.policies.active()
        # Where skips are hidden among ties, nothing may tell which are.
        skips = record.policy.skips if record else "public"
        reading = Reading(settings.columns, question=settings.question, skips=skips)
        batches = read_canonical_rows(path, reading) if bodies else ()
        rows = [row for batch in batches for row in _read_comparisons(batch)]
    skipped = sum(row is None for row in rows)
    return ConnectorCheck(
        name,
        settings.kind,
        settings.source,
        dict(about),
        settings.question,
        len(answers),
        skipped,
        [row for row in rows if row],
        dict(Counter(one.left_out for one in answers if one.left_out not in ("", SKIP))),
        [*([] if answers else [NO_ANSWERS]), *_advise_on_reading(settings, about)],
    )


def _check_question(settings: Settings, about: Mapping[str, str]) -> None:
    """Raise `InvalidLabels` where the tool says what it asks, and not what is to be read."""
    questions = about.get("questions", "")
    names = [name.partition(" (")[0] for name in questions.split(", ")]
    if questions and settings.question is not None and settings.question not in names:
        raise InvalidLabels(
            f'{FILE}: connectors.{settings.name}.question: the tool asks no "{settings.question}"; '
            f"it asks: {questions}"
        )


def _advise_on_reading(settings: Settings, about: Mapping[str, str]) -> Iterator[str]:
    if settings.question is None and "," in about.get("questions", ""):
        yield (
            f'there are several questions: name the one to read (question = "NAME" in '
            f"[connectors.{settings.name}]) before the first release; later, every label would be "
            "new, and charged again"
        )
    yield (
        "labels are read as the tool's own words for the two sides, or the names of their fields; "
        "where it uses others, name them at the first release (--label-values "
        "a=first,b=second,tie=same): any other word is released as a tie"
    )


def _read_comparisons(batch: pa.RecordBatch) -> Iterator[ToolComparison | None]:
    """Yield the comparisons of a batch; None for those that were skipped."""
    from labelguard.inputs.query import PUBLIC_FAULTS

    names = ["labeler", "prompt", "first", "second", "fault"]
    skips = (batch["label"].to_numpy() == LABEL_SKIP).tolist()
    for row, skip in zip(batch.select(names).to_pylist(), skips, strict=True):
        role, why = PUBLIC_FAULTS.get(row["fault"], ("", ""))
        fault = f"{role}: {why}" if role else None
        sides = [_shorten(row["first"]), _shorten(row["second"])]
        yield (
            None if skip else ToolComparison(row["labeler"], _shorten(row["prompt"]), sides, fault)
        )


def _shorten(content: Any) -> str:
    text = content if isinstance(content, str) else " | ".join(m["content"] for m in content or ())
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
