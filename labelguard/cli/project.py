"""The commands that show the ledger (`budget`), and that keep a project as a whole (`project`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP, file_option
from labelguard.cli.policy import TIES, allowance_fact, ceiling_fact, total_fact
from labelguard.cli.terminal import (
    confirm,
    echo,
    format_cell,
    print_bullets,
    print_facts,
    print_table,
    prints,
    verification_code,
)
from labelguard.text import format_budget, pluralize

if TYPE_CHECKING:
    from labelguard.project.backup import Backup
    from labelguard.project.opening import FilesVerification, Verification
    from labelguard.project.policy_facts import CeilingUse
    from labelguard.project.restore import Restored
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
            print_facts([total_fact(value.lifetime), ceiling_fact(value.ceiling)])
        return
    unit = policy.unit
    facts = [
        ("policy", f"{policy.name}: {format_budget(policy)} for each {unit}"),
        ("ties", TIES[policy.ties]),
    ]
    if value.lifetime.policies > 1:
        facts.append(total_fact(value.lifetime))
    facts.append(ceiling_fact(value.ceiling))
    for allowance, use in zip(policy.allowances, value.allowances, strict=True):
        facts += [
            ("pays for", allowance_fact(allowance, unit)),
            (
                f"  {unit}s",
                f"{use.labelers:,} charged so far, exhausted {use.exhausted_labelers:,}",
            ),
            ("  used", f"{use.used:,} of {use.allowed:,}"),
            (f"  used per {unit}", _quartiles(use.used_per_labeler)),
            (f"  left per {unit}", _quartiles(use.left_per_labeler)),
            *_pace(use, unit),
        ]
    print_facts(facts)


def _pace(use: Usage, unit: str) -> Iterator[tuple[str, str]]:
    """Yield how long the allowance lasts the median unit, where that is known."""
    if use.weeks_left is not None:
        left = f"{use.left_per_labeler['median']:,}"
        weeks = pluralize(use.weeks_left, "week")
        yield f"  median {unit}", f"{left} left, {weeks} at the present rate"


def _quartiles(spread: Mapping[str, float]) -> str:
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

    return overview.budget(project)


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

    return overview.labeler(labeler_id, project)


def _print_across(value: PersonSpending) -> None:
    rows = (
        (one.project, one.unit or "–", format_budget(one) if one.budgets else "nothing")
        for one in value.projects
    )
    print_table(("project", "protects each", "spent"), rows)
    echo()
    if value.total is None:
        echo("There is no sum: the projects protect different things, or contents.")
    else:
        echo(f"All of it together may have told of the person: {format_budget(value.total)}.")


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
@prints(_print_across)
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
    def row(entry: JournalEntry) -> tuple[str, ...]:
        body = {k: v for k, v in entry.body.items() if k not in (*_UNSEEN, "release")}
        # What is charged are uses; entries have had the key `labels` for ever.
        words = {"labels": "uses"} if entry.kind in ("charged", "refunded") else {}
        details = ", ".join(f"{words.get(k, k)} {format_cell(value)}" for k, value in body.items())
        release = entry.body.get("release", "")
        number, digest = str(entry.number), entry.digest[:12]
        return number, entry.at, entry.kind, release, details, digest

    names = ("no.", "at", "what", "release", "details", "digest")
    print_table(names, map(row, entries), right=["no."])


@budget.command("journal", short_help="Everything that was charged and committed.")
@prints(_print_journal, project=True)
def budget_journal(project: Path | None) -> list[JournalEntry]:
    """List everything that was charged, computed, committed or given back.

    \b
    Example:
      labelguard budget journal
    """
    from labelguard.report import overview

    return overview.journal(project)


def print_verification(value: Verification | FilesVerification) -> None:
    """Print the result of a verification."""
    if not value.ok:
        echo(f"labelguard: {value.fault}", err=True)
        return
    nouns = (("journal_entries", "journal entry"), ("releases", "release"))
    counts = [pluralize(getattr(value, name), noun) for name, noun in nouns if hasattr(value, name)]
    echo(f"No faults found: {', '.join(counts)}.")
    if backwards := getattr(value, "backwards", None):
        echo(f"labelguard: note: {backwards}", err=True)


@budget.command("verify", short_help="Check the journal, charges and releases.")
@click.option(
    "--anchor",
    metavar="LINE",
    help="An earlier `budget anchor`: the journal must still contain it.",
)
@prints(print_verification, code=verification_code, project=True)
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

    return overview.anchor(project)


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

    return overview.export(output, project)


@click.group(context_settings=HELP)
def project() -> None:
    """A project as a whole: its ceiling, its backups."""


def _print_backup(value: Backup) -> None:
    entries = pluralize(value.journal_entries, "journal entry")
    releases = pluralize(value.releases, "release")
    facts = [
        ("backup", f"{value.path} ({value.bytes:,} bytes, mode 0600)"),
        ("holds", f"settings, the ledger ({entries}), {releases} and the {_MAPS}"),
        ("keys", f"not included: keep a copy of the keys directory elsewhere; {_WITHOUT}"),
        ("left out", "rows set aside (quarantine)"),
    ]
    if value.unfinished:
        names = ", ".join(value.unfinished)
        facts.append(("unfinished", f"{names}: cannot be resumed from this backup"))
    if value.fault:
        facts.append(("FAULT", f"{value.fault}; this backup has the fault too: keep earlier ones"))
    print_facts([*facts, ("anchor", value.anchor)])
    print_bullets([_ANCHOR, _AGAIN])


_MAPS = "PRIVATE maps of released labels"
_WITHOUT = "without it the backup cannot be restored"
_ANCHOR = "Keep the anchor where this project cannot change it."
_AGAIN = (
    "Back up again after every release, and after activating a policy, changing groups, or "
    "retiring a labeler."
)


@project.command("backup", short_help="Back up a project to one file, without keys.")
@click.argument("file", type=click.Path(path_type=Path))
@prints(_print_backup, code=lambda value: 1 if value.fault else 0, wait=True)
def project_backup(file: Path, project: Path | None) -> Backup:
    """Write settings, ledger, releases and the private maps of released labels to FILE.

    Rows that were set aside (quarantine) are left out, and so are the keys. Prints the backup's
    anchor: kept elsewhere, it shows later that this is the project's history. If
    a released file is not as committed, the backup is still written with it, for the sake of
    the ledger; the fault is named and the exit code is 1: keep earlier backups.

    \b
    Example:
      labelguard project backup backup.tar.zst --wait
    """
    from labelguard.project.backup import backup

    return backup(file, project=project)


def _print_restored(value: Restored) -> None:
    state = (
        "complete, as you declared: nothing was charged after the backup"
        if value.complete
        else "charges may have followed the backup; the full price of its policy covers them"
    )
    facts = [
        ("project", value.project),
        ("backup", f"{value.backup}, made {value.created_at}"),
        ("state", state),
        ("keys", value.keys),
        ("releases", f"{value.releases:,}"),
    ]
    for name, names, about in (
        ("closed", [f"policy {name}" for name in value.closed], ", at its full price"),
        ("abandoned", value.abandoned, ": charged, never finished"),
    ):
        if names:
            facts.append((name, f"{', '.join(names)}{about}"))
    print_facts([*facts, ("anchor", value.anchor)])
    last = "The keys belong to this project now: never let another one work with them."
    leavers = (
        f"Repeat departures (labelguard labeler retire, erase) that came after {value.created_at}: "
        "labelers who left since are back."
    )
    lost = (
        f"Pay again for each policy that was put into force after {value.created_at}, which the "
        "backup does not contain: make it with its ε and δ (labelguard policy new), activate and "
        "close it."
    )
    print_bullets([leavers, *(() if value.complete else (lost, *_AFTER_A_LOSS)), last])


_AFTER_A_LOSS = (
    "Put a new policy into force (labelguard policy new, labelguard policy activate): it is paid "
    "on top of what was closed.",
    "Before that, repeat groups that followed the backup (labelguard policy groups).",
)


@project.command("restore", short_help="Restore a backup; unknown charges count as paid.")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--anchor", metavar="LINE", help="The newest anchor that you kept of the project.")
@click.option(
    "--nothing-since",
    is_flag=True,
    help="Declare that nothing was charged after the backup, and no policy put into force.",
)
@click.option(
    "--keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="A keys directory to copy; else LABELGUARD_KEYS is used in place.",
)
@prints(_print_restored)
def project_restore(
    file: Path, directory: Path, anchor: str | None, nothing_since: bool, keys: Path | None
) -> Restored:
    """Put the project of backup FILE into DIRECTORY, where there is none.

    Later charges may be unknown: the policy in force is closed at its full
    price, which covers them, and another must be activated. Policies that followed are not in it:
    pay each again. No anchor shows that nothing followed: only you can declare it
    (--nothing-since); a kept anchor can refute it. To try a backup, give --keys a copy of the
    keys, leave LABELGUARD_KEYS unset, and delete what was restored.

    \b
    Example:
      labelguard project restore backup.tar.zst restored --keys .labelguard/keys
    """
    from labelguard.project.restore import restore

    return restore(file, directory, anchor=anchor, nothing_since=nothing_since, keys=keys)


def _print_ceiling(value: CeilingUse, *, err: bool = False) -> None:
    facts = [ceiling_fact(value.ceiling)]
    facts += [("reached", format_budget(value.reached)), ("left", format_budget(value.left))]
    if value.raised:
        raised = f"{format_budget(value.raised)}: only this is promised from then on"
        facts.append(("raised to", raised))
    print_facts(facts, err=err)


@project.command("ceiling", short_help="What all policies together may cost, for life.")
@click.option(
    "--raise",
    "raised",
    metavar="EPSILON,DELTA",
    help="Raise it; from then on only this one is promised. It is never lowered.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@prints(_print_ceiling, wait=True)
def project_ceiling(raised: str | None, yes: bool, project: Path | None) -> CeilingUse:
    """Show the ceiling that no sum of policies passes, and what is left below it; or raise it.

    \b
    Example:
      labelguard project ceiling
      labelguard project ceiling --raise 20,1e-4 --yes
    """
    from labelguard.budget.policy import parse_budget
    from labelguard.ledger.policies import Ceiling
    from labelguard.project import policy_facts

    if raised is None:
        return policy_facts.show_ceiling(project)
    ceiling = Ceiling(*parse_budget("--raise", raised))
    shown = policy_facts.show_ceiling(project, ceiling)
    if not yes:
        _print_ceiling(shown, err=True)
        confirm("Raise the ceiling, for good?")
    return policy_facts.raise_ceiling(ceiling, project)
