"""The commands that keep a project as a whole (`project`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP, CommandGroup
from labelguard.cli.policy import format_ceiling_fact
from labelguard.cli.terminal import confirm, echo, print_bullets, print_facts, prints
from labelguard.text import format_budget, pluralize

if TYPE_CHECKING:
    from labelguard.project.backup import Backup
    from labelguard.project.policy_facts import CeilingUse
    from labelguard.project.restore import Restored


@click.group(cls=CommandGroup, context_settings=HELP)
def project() -> None:
    """A project as a whole: its ceiling, its backups, its version."""


def _print_backup(value: Backup) -> None:
    entries = pluralize(value.journal_entries, "journal entry")
    releases = pluralize(value.releases, "release")
    facts = [
        ("backup", f"{value.path} ({value.bytes:,} bytes, mode 0600)"),
        (
            "holds",
            f"settings, the ledger ({entries}), {releases} and the PRIVATE maps of released labels",
        ),
        (
            "keys",
            "not included: keep a copy of the keys directory elsewhere; without it the backup "
            "cannot be restored",
        ),
        ("left out", "rows set aside (quarantine)"),
    ]
    if value.unfinished:
        names = ", ".join(value.unfinished)
        facts.append(("unfinished", f"{names}: cannot be resumed from this backup"))
    if value.fault:
        facts.append(("FAULT", f"{value.fault}; this backup has the fault too: keep earlier ones"))
    print_facts([*facts, ("anchor", value.anchor)])
    print_bullets(
        [
            "Keep the anchor where this project cannot change it.",
            "Back up again after every release, and after activating a policy, changing groups, "
            "or retiring a labeler.",
        ]
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
    if value.closed:
        facts.append(("closed", f"policy {', '.join(value.closed)}, at its full price"))
    if value.abandoned:
        facts.append(("abandoned", f"{', '.join(value.abandoned)}: charged, never finished"))
    print_facts([*facts, ("anchor", value.anchor)])
    echo()
    for number, step in enumerate(_list_steps_after_restore(value), 1):
        echo(f"{number}. {step}")


def _list_steps_after_restore(value: Restored) -> Iterator[str]:
    yield (
        f"Retire or erase again everyone who left after {value.created_at} (labelguard labeler "
        "retire, erase)."
    )
    if not value.complete:
        yield (
            f"Recreate each policy that was put into force after {value.created_at}, with its ε "
            "and δ (labelguard policy new); activate and close it."
        )
        yield (
            "Put a new policy into force (labelguard policy new, labelguard policy activate): it "
            "is paid on top of what was closed."
        )
    yield "Restart `labelguard serve` and jobs: they still hold the old ledger."
    yield "With connectors: read what the tools hold (labelguard connect reconcile NAME)."
    yield "Do not use these keys with any other copy."


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
    facts = [format_ceiling_fact(value.ceiling)]
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
