"""The commands that show the ledger (`budget`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP, CommandGroup, file_option
from labelguard.cli.policy import TIES, describe_allowance, format_ceiling_fact, format_total_fact
from labelguard.cli.terminal import (
    choose_verification_exit_code,
    echo,
    format_cell,
    print_facts,
    print_notes,
    print_table,
    prints,
)
from labelguard.text import format_budget, pluralize

if TYPE_CHECKING:
    from labelguard.project.verification import FilesVerification, Verification
    from labelguard.report.overview import (
        Budget,
        Exported,
        JournalEntry,
        Usage,
    )


@click.group(cls=CommandGroup, context_settings=HELP)
def budget() -> None:
    """Show what labelers have spent, and what is left."""


def _print_budget(value: Budget) -> None:
    policy = value.policy
    if policy is None:
        closed = value.lifetime.policies
        remedy = "" if closed else "the first privatize makes one; to make one now: "
        echo(f"No policy is in force: {remedy}labelguard policy new")
        if closed:
            print_facts([format_total_fact(value.lifetime), format_ceiling_fact(value.ceiling)])
        return
    unit = policy.unit
    facts = [
        ("policy", f"{policy.name}: {format_budget(policy)} for each {unit}"),
        ("ties", TIES[policy.ties]),
    ]
    if value.lifetime.policies > 1:
        facts.append(format_total_fact(value.lifetime))
    facts.append(format_ceiling_fact(value.ceiling))
    for allowance, use in zip(policy.allowances, value.allowances, strict=True):
        facts += [
            ("pays for", describe_allowance(allowance, unit)),
            (
                f"  {unit}s",
                f"{use.labelers:,} charged so far, exhausted {use.exhausted_labelers:,}",
            ),
            ("  used", f"{use.used:,} of {use.allowed:,}"),
            (f"  used per {unit}", _format_quartiles(use.used_per_labeler)),
            (f"  left per {unit}", _format_quartiles(use.left_per_labeler)),
            *_describe_remaining_weeks(use, unit),
        ]
    print_facts(facts)


def _describe_remaining_weeks(use: Usage, unit: str) -> Iterator[tuple[str, str]]:
    """Yield how long the allowance lasts the median unit, where that is known."""
    if use.weeks_left is not None:
        left = f"{use.left_per_labeler['median']:,}"
        weeks = pluralize(use.weeks_left, "week")
        yield f"  median {unit}", f"{left} left, {weeks} at the present rate"


def _format_quartiles(spread: Mapping[str, float]) -> str:
    shown = " / ".join(f"{number:,.0f}" for number in spread.values())
    return f"{shown}  (min / quartiles / max)" if shown else "–"


@budget.command("show")
@prints(_print_budget, project=True)
def budget_show(project: Path | None) -> Budget:
    """The policy, and how much of it is used and left.

    \b
    Example:
      labelguard budget show
    """
    from labelguard.report import overview

    return overview.read_budget(project)


# What a journal entry holds for `budget verify`, too long for a table.
_UNSEEN = (
    *("files", "settings", "quote", "charges", "prices", "links", "tombstones"),
    *("identities", "sources", "columns"),
)


def _print_journal(entries: Sequence[JournalEntry]) -> None:
    def format_row(entry: JournalEntry) -> tuple[str, ...]:
        body = {k: v for k, v in entry.body.items() if k not in (*_UNSEEN, "release")}
        # What is charged are uses; entries have had the key `labels` for ever.
        words = {"labels": "uses"} if entry.kind in ("charged", "refunded") else {}
        details = ", ".join(f"{words.get(k, k)} {_format_detail(v)}" for k, v in body.items())
        release = entry.body.get("release", "")
        number, digest = str(entry.number), entry.digest[:12]
        return number, entry.at, entry.kind, release, details, digest

    names = ("no.", "at", "what", "release", "details", "digest")
    print_table(names, map(format_row, entries), right=["no."])


def _format_detail(value: object) -> str:
    """Return a value of an entry, of a map its names and values."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_format_detail(each)}" for name, each in value.items()) or "–"
    return format_cell(value)


@budget.command("journal", short_help="Everything that was charged and committed.")
@prints(_print_journal, project=True)
def budget_journal(project: Path | None) -> list[JournalEntry]:
    """List everything that was charged, computed, committed or given back.

    \b
    Example:
      labelguard budget journal
    """
    from labelguard.report import overview

    return overview.read_journal(project)


def print_verification(value: Verification | FilesVerification) -> None:
    """Print the result of a verification."""
    if not value.ok:
        echo(f"labelguard: {value.fault}", err=True)
        return
    nouns = (("journal_entries", "journal entry"), ("releases", "release"))
    counts = [pluralize(getattr(value, name), noun) for name, noun in nouns if hasattr(value, name)]
    where = "" if hasattr(value, "journal_entries") else " in files"
    echo(f"No faults found{where}: {', '.join(counts)}.")
    if anchor := getattr(value, "anchor", None):
        print_facts([("anchor", anchor)])
    if backwards := getattr(value, "backwards", None):
        print_notes([backwards])


@budget.command("verify", short_help="Check the journal, charges and releases.")
@click.option(
    "--anchor",
    metavar="LINE",
    help="The anchor of an earlier verification: the journal must still contain it.",
)
@prints(print_verification, code=choose_verification_exit_code, project=True)
def budget_verify(anchor: str | None, project: Path | None) -> Verification:
    """Recompute the journal's chain, the sums of charges and the releases' hashes.

    Names the first fault and exits with code 1. Prints an anchor, a line that pins the history so
    far. Keep it where this machine cannot change it: only an earlier anchor can show that the whole
    history was rewritten, cut off or rolled back. A note says where the journal's time runs
    backwards.

    \b
    Example:
      labelguard budget verify
    """
    from labelguard.report import overview

    return overview.verify(project, anchor)


def _print_export(value: Exported) -> None:
    rows = pluralize(sum(value.rows.values()), "row")
    echo(f"Written to {value.path}: {rows} of {pluralize(len(value.rows), 'table')}.")


@budget.command("export", short_help="The whole ledger as JSON.")
@file_option("ledger.json", required=True, help="File to write.")
@prints(_print_export, project=True)
def budget_export(output: Path, project: Path | None) -> Exported:
    """Write every table of the ledger to FILE: pseudonyms, counts, prices, the journal. No label.

    \b
    Example:
      labelguard budget export -o ledger.json
    """
    from labelguard.report import overview

    return overview.export_ledger(output, project)
