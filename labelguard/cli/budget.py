"""The commands that show the ledger (`budget`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP, file_option
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
        AnchorLine,
        Budget,
        Exported,
        JournalEntry,
        LabelerBudget,
        Usage,
    )
    from labelguard.report.person import PersonSpending


@click.group(context_settings=HELP)
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


def _print_labeler(value: LabelerBudget) -> None:
    gone = value.departure
    facts = [("left", f"{gone.kind} on {gone.at}")] if gone else []
    print_facts([("pseudonym", value.pseudonym), *facts])
    if not value.allowances:
        echo("Nothing has been charged yet.")
        return
    echo()
    names, rows = ("policy", "event", "allowed", "used", "left"), []
    for a in value.allowances:
        left = "closed" if a.state == "closed" else None if gone else a.left
        rows.append((a.policy, a.event, a.allowed, a.used, left))
    print_table(names, rows, right=names[2:])
    echo(f"\nspent: {format_budget(value)} (all policies, at their full price)")


@budget.command("labeler", short_help="What one labeler has spent, and whether they left.")
@click.argument("labeler_id")
@prints(_print_labeler, project=True)
def budget_labeler(labeler_id: str, project: Path | None) -> LabelerBudget:
    """Show what one labeler has spent, and whether they left, which a tombstone keeps known.

    LABELER_ID is the id in your files, SOURCE:ID where there are several sources, or a pseudonym.

    \b
    Example:
      labelguard budget labeler physician-0000
    """
    from labelguard.report import overview

    return overview.read_labeler_budget(labeler_id, project)


def _print_spending_across_projects(value: PersonSpending) -> None:
    rows = (
        (one.project, one.unit or "–", format_budget(one) if one.budgets else "nothing")
        for one in value.projects
    )
    print_table(("project", "protects each", "spent"), rows)
    echo()
    if value.total is None:
        echo("There is no sum: the projects protect different things, or contents.")
    else:
        echo(f"Total privacy loss across these projects: at most {format_budget(value.total)}.")


@budget.command("across", short_help="What one person has spent in several projects.")
@click.argument("projects", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--labeler",
    "labeler_ids",
    metavar="ID",
    multiple=True,
    required=True,
    help="Id of the person, in the files of these projects; again for another id of theirs.",
)
@prints(_print_spending_across_projects)
def budget_across(projects: tuple[Path, ...], labeler_ids: tuple[str, ...]) -> PersonSpending:
    """Add up what one person has spent in PROJECTS, each the directory of a project.

    The id itself (ID, or SOURCE:ID) is looked up in each. Whoever was charged has spent what all
    policies of that project cost. Of different units, or of contents, there is no sum.

    \b
    Example:
      labelguard budget across . other --labeler physician-0000
    """
    from labelguard.report import person

    return person.add_up_spending(labeler_ids, projects)


# What a journal entry holds for `budget verify`, too long for a table.
_UNSEEN = (
    *("files", "settings", "quote", "charges", "prices", "members", "tombstones"),
    *("identities", "distinct", "sources", "columns"),
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
    if backwards := getattr(value, "backwards", None):
        print_notes([backwards])


@budget.command("verify", short_help="Check the journal, charges and releases.")
@click.option(
    "--anchor",
    metavar="LINE",
    help="An earlier `budget anchor`: the journal must still contain it.",
)
@prints(print_verification, code=choose_verification_exit_code, project=True)
def budget_verify(anchor: str | None, project: Path | None) -> Verification:
    """Recompute the journal's chain, the sums of charges and the releases' hashes.

    Names the first fault and exits with code 1. Only an anchor kept
    elsewhere can show that the whole history was rewritten, cut off or rolled back. A note says
    where the journal's time runs backwards.

    \b
    Example:
      labelguard budget verify
    """
    from labelguard.report import overview

    return overview.verify(project, anchor)


def _print_anchor(line: AnchorLine) -> None:
    echo(line.anchor)


@budget.command("anchor", short_help="Print a line that pins the history so far.")
@prints(_print_anchor, project=True)
def budget_anchor(project: Path | None) -> AnchorLine:
    """Print the journal's newest entry as one line, to be kept where this machine cannot change it.

    \b
    Example:
      labelguard budget anchor
    """
    from labelguard.report import overview

    return overview.read_anchor_line(project)


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
