"""The commands that keep a project as a whole: `project`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from labelguard.cli_options import HELP, json_option, project_option

passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Its first line is the passphrase of the keys; else LABELGUARD_PASSPHRASE, else asked.",
)


@click.group(context_settings=HELP)
def project() -> None:
    """Backups of a project, and new pseudonyms."""


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
    from labelguard import render_project
    from labelguard.backup import backup

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
    from labelguard import render_project, restoring

    since = restoring.parse_since(anchor, lost, no_later_policy)
    secret = _passphrase(passphrase_file, confirm=False)
    found = restoring.restore(file, directory, since=since, keys=keys, passphrase=secret)
    render_project.restored(found, as_json=as_json)


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
    from labelguard import render_project
    from labelguard.rotation import rotate

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
