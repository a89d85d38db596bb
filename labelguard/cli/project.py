"""The commands that keep a project as a whole: `project`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from labelguard.cli.options import HELP, json_option, project_option

passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Its first line is the passphrase of the keys; else LABELGUARD_PASSPHRASE, else asked.",
)


@click.group(context_settings=HELP)
def project() -> None:
    """A project as a whole: its ceiling, backups, new pseudonyms, new witnesses."""


@project.command("backup", short_help="All of a project in one file, without its keys.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--with-keys", is_flag=True, help="The keys as well, enciphered under a passphrase.")
@passphrase_option
@project_option
@json_option
def project_backup(
    file: Path,
    with_keys: bool,
    passphrase_file: Path | None,
    project: Path | None,
    as_json: bool,
) -> None:
    """Write settings, ledger, releases and the private maps of released labels to FILE.

    Rows that were set aside (quarantine) are left out, and so are the keys, unless asked for.
    Prints the backup's anchor: kept elsewhere, it shows later whether anything followed the backup.

    \b
    Example:
      labelguard project backup backup.tar.zst
    """
    from labelguard.cli import render_project
    from labelguard.project.backup import backup

    secret = _passphrase(passphrase_file, confirm=True) if with_keys else None
    render_project.backup(backup(file, passphrase=secret, project=project), as_json=as_json)


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
    "--keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="A keys directory to copy; else LABELGUARD_KEYS is used in place, else the backup's keys.",
)
@passphrase_option
@json_option
def project_restore(
    file: Path,
    directory: Path,
    anchor: str | None,
    lost: tuple[str, ...],
    no_later_policy: bool,
    keys: Path | None,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Put the project of backup FILE into DIRECTORY, where there is none.

    Unless --anchor is the backup's, charges may have followed that nobody remembers: the policy in
    force is then closed at its full price, which covers them, and another must be activated.

    \b
    Example:
      labelguard project restore backup.tar.zst restored --keys .labelguard/keys --no-later-policy
    """
    from labelguard.cli import render_project
    from labelguard.project import restore

    since = restore.parse_since(anchor, lost, no_later_policy)
    secret = _passphrase(passphrase_file, confirm=False)
    found = restore.restore(file, directory, since=since, keys=keys, passphrase=secret)
    render_project.restored(found, as_json=as_json)


@project.command("ceiling", short_help="What all policies together may cost, for life.")
@click.option(
    "--raise",
    "raised",
    metavar="EPSILON,DELTA",
    help="Raise it; from then on only this one is promised. It is never lowered.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@project_option
@json_option
def project_ceiling(raised: str | None, yes: bool, project: Path | None, as_json: bool) -> None:
    """Show the ceiling that no sum of policies passes, and what is left below it; or raise it.

    \b
    Example:
      labelguard project ceiling
      labelguard project ceiling --raise 20,1e-4 --yes
    """
    from labelguard.cli import render_budget
    from labelguard.ledger.ceilings import Ceiling
    from labelguard.policy.policy import parse_budget
    from labelguard.project import raising

    if raised is None:
        render_budget.ceiling(raising.show(project), as_json=as_json)
        return
    ceiling = Ceiling(*parse_budget("--raise", raised))
    shown = raising.show(project, ceiling)
    if not yes:
        render_budget.ceiling(shown, as_json=False, err=True)
        click.confirm("Raise the ceiling, for good?", abort=True, err=True)
    render_budget.ceiling(raising.raise_ceiling(ceiling, project), as_json=as_json)


@project.command("witness", short_help="Trust a ledger anew whose witnesses are lost.")
@click.option("--renew", is_flag=True, required=True, help="Write both witnesses anew.")
@click.option("--anchor", metavar="LINE", help="The newest anchor that was kept elsewhere.")
@click.option("--no-anchor", is_flag=True, help="Declare that none was kept; asks.")
@project_option
@json_option
def project_witness(
    renew: bool, anchor: str | None, no_anchor: bool, project: Path | None, as_json: bool
) -> None:
    """Write the two files anew (ledger.head) that tell an older copy of the ledger from the newest.

    Needed only if both are lost. Everything is verified first, and the journal tells of it. An
    anchor shows that the ledger did not fall back behind it; what came after it, nothing shows.

    \b
    Example:
      labelguard project witness --renew --no-anchor
    """
    from labelguard.cli import render_project
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
    render_project.renewed(write(anchor, project), as_json=as_json)


@project.command("rotate-pseudonyms", short_help="New pseudonyms for all labelers.")
@project_option
@json_option
def project_rotate_pseudonyms(project: Path | None, as_json: bool) -> None:
    """Give every labeler a new pseudonym: older lists can no longer be matched by name.

    Releases, coins and what was spent do not change. Entries that the journal has already keep the
    pseudonyms of their day.

    \b
    Example:
      labelguard project rotate-pseudonyms
    """
    from labelguard.cli import render_project
    from labelguard.project.rotation import rotate

    render_project.rotated(rotate(project), as_json=as_json)


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
