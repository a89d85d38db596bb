"""The commands that keep a project as a whole: `project`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP, project_option, wait_option
from labelguard.cli.policy import ceiling_fact
from labelguard.cli.terminal import print_bullets, print_facts, prints
from labelguard.terms import budget_of, counted

if TYPE_CHECKING:
    from labelguard.project.backup import Backup
    from labelguard.project.raising import CeilingUse
    from labelguard.project.renewal import Renewed
    from labelguard.project.restore import Restored
    from labelguard.project.rotation import Rotated
    from labelguard.project.upgrade import Migrated

passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Its first line is the passphrase of the keys; else LABELGUARD_PASSPHRASE, else asked.",
)


@click.group(context_settings=HELP)
def project() -> None:
    """A project as a whole: its ceiling, backups, upgrades, new pseudonyms, new witnesses."""


def _backup(value: Backup) -> None:
    entries = counted(value.journal_entries, "journal entry")
    facts = [
        ("backup", f"{value.path} ({value.bytes:,} bytes, mode 0600)"),
        (
            "holds",
            f"settings, the ledger ({entries}), {counted(value.releases, 'release')} and the "
            "PRIVATE maps of released labels",
        ),
        (
            "keys",
            "in it, enciphered under your passphrase: without the passphrase they are lost"
            if value.keys
            else "not in it: keep a copy of the keys directory elsewhere; without it the backup "
            "cannot be restored",
        ),
        ("left out", "rows set aside (quarantine)"),
    ]
    if value.unfinished:
        names = ", ".join(value.unfinished)
        facts.append(("unfinished", f"{names}: cannot be resumed from this backup"))
    if value.fault:
        facts.append(("FAULT", f"{value.fault}; it is so in this backup: keep earlier ones"))
    print_facts([*facts, ("anchor", value.anchor)])
    print_bullets(
        [
            _ANCHOR,
            "Back up again after every release, and after activating a policy, changing groups, "
            "or retiring a labeler.",
        ]
    )


_ANCHOR = "Keep the anchor where this project cannot change it."


@project.command("backup", short_help="All of a project in one file, without its keys.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--with-keys", is_flag=True, help="The keys as well, enciphered under a passphrase.")
@passphrase_option
@project_option
@wait_option
@prints(_backup, code=lambda value: 1 if value.fault else 0)
def project_backup(
    file: Path, with_keys: bool, passphrase_file: Path | None, project: Path | None
) -> Backup:
    """Write settings, ledger, releases and the private maps of released labels to FILE.

    Rows that were set aside (quarantine) are left out, and so are the keys, unless asked for.
    Prints the backup's anchor: kept elsewhere, it shows later that this is the project's history.
    Where a released file is not what was committed, the backup is written with it as it is, for the
    ledger's sake; the fault is named, and the exit code is 1: keep earlier backups.

    \b
    Example:
      labelguard project backup backup.tar.zst --wait
    """
    from labelguard.project.backup import backup

    secret = _passphrase(passphrase_file, confirm=True) if with_keys else None
    return backup(file, passphrase=secret, project=project)


def _restored(value: Restored) -> None:
    state = (
        "complete, on your word: nothing was charged after the backup"
        if value.complete
        else "charges may have followed the backup; they are covered by full prices"
    )
    facts = [
        ("project", value.project),
        ("backup", f"{value.backup}, made {value.created_at}"),
        ("state", state),
        ("keys", value.keys),
        ("releases", f"{value.releases:,}"),
    ]
    for name, found, about in (
        ("closed", [f"policy {name}" for name in value.closed], ", at its full price"),
        ("lost", value.lost_policies, ": paid at the prices given"),
        ("abandoned", value.abandoned, ": charged, never finished"),
    ):
        if found:
            facts.append((name, f"{', '.join(found)}{about}"))
    print_facts([*facts, ("anchor", value.anchor)])
    last = "The keys belong to this project now: never let another one work with them."
    leavers = (
        f"Repeat departures (labelguard labeler retire, erase) that came after {value.created_at}: "
        "whoever left since is back."
    )
    print_bullets([leavers, *(() if value.complete else _AFTER_A_LOSS), last])


_AFTER_A_LOSS = (
    "Put a new policy into force (labelguard policy new, labelguard policy activate): it is paid "
    "on top of what was closed.",
    "Before that, repeat groups that followed the backup (labelguard policy groups).",
)


@project.command("restore", short_help="A project from its backup; what is unknown is paid.")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--anchor", metavar="LINE", help="The newest anchor that was kept of the project.")
@click.option(
    "--lost-policy",
    "lost",
    multiple=True,
    metavar="EPSILON,DELTA",
    help="Price of a policy put into force after the backup; once for each.",
)
@click.option(
    "--no-later-policy",
    is_flag=True,
    help="Declare that no policy was put into force after the backup.",
)
@click.option(
    "--nothing-since",
    is_flag=True,
    help="Declare that nothing was charged after the backup, whose --anchor is given as well.",
)
@click.option(
    "--keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="A keys directory to copy; else LABELGUARD_KEYS is used in place, else the backup's keys.",
)
@passphrase_option
@prints(_restored)
def project_restore(
    file: Path,
    directory: Path,
    anchor: str | None,
    lost: tuple[str, ...],
    no_later_policy: bool,
    nothing_since: bool,
    keys: Path | None,
    passphrase_file: Path | None,
) -> Restored:
    """Put the project of backup FILE into DIRECTORY, where there is none.

    Charges may have followed that nobody remembers: the policy in force is closed at its full
    price, which covers them, and another must be activated. No anchor shows that nothing followed:
    only who knows can say so (--nothing-since). To try a backup, give --keys a copy of the keys,
    leave LABELGUARD_KEYS unset, and delete what was restored.

    \b
    Example:
      labelguard project restore backup.tar.zst restored --keys .labelguard/keys --no-later-policy
    """
    from labelguard.project import restore

    since = restore.parse_since(anchor, lost, no_later_policy, nothing_since)
    secret = _passphrase(passphrase_file, confirm=False)
    return restore.restore(file, directory, since=since, keys=keys, passphrase=secret)


def _ceiling(value: CeilingUse, *, err: bool = False) -> None:
    facts = [ceiling_fact(value.ceiling)]
    facts += [("reached", budget_of(value.reached)), ("left", budget_of(value.left))]
    if value.raised:
        raised = f"{budget_of(value.raised)}: only this is promised from then on"
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
@project_option
@wait_option
@prints(_ceiling)
def project_ceiling(raised: str | None, yes: bool, project: Path | None) -> CeilingUse:
    """Show the ceiling that no sum of policies passes, and what is left below it; or raise it.

    \b
    Example:
      labelguard project ceiling
      labelguard project ceiling --raise 20,1e-4 --yes
    """
    from labelguard.ledger.ceilings import Ceiling
    from labelguard.policy.policy import parse_budget
    from labelguard.project import raising

    if raised is None:
        return raising.show(project)
    ceiling = Ceiling(*parse_budget("--raise", raised))
    shown = raising.show(project, ceiling)
    if not yes:
        _ceiling(shown, err=True)
        click.confirm("Raise the ceiling, for good?", abort=True, err=True)
    return raising.raise_ceiling(ceiling, project)


def _renewed(value: Renewed) -> None:
    known = value.proven_to
    proven = f"up to entry {known}, by the anchor" if known else "nothing, without anchor"
    print_facts(
        [
            ("project", value.project),
            ("witnesses", f"written, at journal entry {value.journal_entries}"),
            ("proven", proven),
            ("anchor", value.anchor),
        ]
    )
    print_bullets([_ANCHOR])


@project.command("witness", short_help="Trust a ledger anew whose witnesses are lost.")
@click.option("--renew", is_flag=True, required=True, help="Write both witnesses anew.")
@click.option("--anchor", metavar="LINE", help="The newest anchor that was kept elsewhere.")
@click.option("--no-anchor", is_flag=True, help="Declare that none was kept; asks.")
@project_option
@wait_option
@prints(_renewed)
def project_witness(
    renew: bool, anchor: str | None, no_anchor: bool, project: Path | None
) -> Renewed:
    """Write the two files anew (ledger.head) that tell an older copy of the ledger from the newest.

    Needed only if both are lost. Everything is verified first, and the journal tells of it. An
    anchor shows that the ledger did not fall back behind it; what came after it, nothing shows.

    \b
    Example:
      labelguard project witness --renew --no-anchor
    """
    from labelguard.project.renewal import renew as write

    if (anchor is None) is not no_anchor:
        raise click.UsageError("give either --anchor LINE or --no-anchor")
    if no_anchor:
        click.confirm(
            "NOTHING WILL SHOW whether this ledger is an older copy. If it is, what was spent "
            "since is forgotten, and labelers can lose more than was promised. Trust it?",
            abort=True,
            err=True,
        )
    return write(anchor, project)


def _migrated(value: Migrated) -> None:
    print_facts(
        [("project", value.project), ("ledger", f"schema {value.schema}"), ("anchor", value.anchor)]
    )
    print_bullets([_ANCHOR])


@project.command("migrate", short_help="Bring the ledger of an earlier version up to date.")
@project_option
@wait_option
@prints(_migrated)
def project_migrate(project: Path | None) -> Migrated:
    """Bring the tables of a ledger that an earlier version made up to date; else change nothing.

    The first job of a new version does the same, in one transaction that the journal tells of. An
    earlier version cannot open the ledger afterwards: make a backup with that version first.

    \b
    Example:
      labelguard project migrate
    """
    from labelguard.project.upgrade import migrate

    return migrate(project)


def _rotated(value: Rotated) -> None:
    names = counted(value.renamed, "pseudonym")
    print_facts([("project", value.project), ("renamed", f"{names} in the ledger")])
    print_bullets(
        [
            "Back up the keys directory and the project again: older backups of the ledger go "
            "with the keys of their time.",
            "Entries that the journal had already keep the old names of labelers who left.",
        ]
    )


@project.command("rotate-pseudonyms", short_help="New pseudonyms for all labelers.")
@project_option
@wait_option
@prints(_rotated)
def project_rotate_pseudonyms(project: Path | None) -> Rotated:
    """Give every labeler a new pseudonym: older lists can no longer be matched by name.

    Releases, coins and what was spent do not change. Entries that the journal has already keep the
    pseudonyms of their day.

    \b
    Example:
      labelguard project rotate-pseudonyms
    """
    from labelguard.project.rotation import rotate

    return rotate(project)


def _passphrase(file: Path | None, *, confirm: bool) -> Callable[[], str]:
    """Where a passphrase comes from, once it is wanted."""

    def ask() -> str:
        if file:
            lines = file.read_text(encoding="utf-8").splitlines()
            return lines[0] if lines else ""
        given = os.environ.get("LABELGUARD_PASSPHRASE")
        if given is not None:
            return given
        text = "Passphrase of the keys"
        return str(click.prompt(text, hide_input=True, confirmation_prompt=confirm, err=True))

    return ask
