"""Writes docs/cli.md, the reference of the command line, from the commands' own help.

    python docs/generate_cli.py

A test compares the file with what this writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from labelguard.cli.main import main

PAGE = Path(__file__).with_name("cli.md")
_WIDTH = 80

EXIT_CODES = {
    0: "done",
    1: "an error, or something that does not hold (`verify`, `doctor`, `audit`)",
    2: "wrong usage, or an extra that is not installed",
    3: "labelers are exhausted; nothing was charged or released",
    4: "another job works in the project",
}

AUDIT_KEYS = [
    "mechanism",
    "claim_epsilon",
    "delta",
    "lower_bound",
    "confidence",
    "runs",
    "verdict",
    "checks",
]
POLICY_KEYS = [
    "name",
    "state",
    "created_at",
    "epsilon",
    "delta",
    "allowances",
    "ties",
    "tie_status_public",
    "unit",
    "closing_points",
    "label_values",
    "skips",
    "assignment_reactive",
    "closed_at_point",
    "quote",
]
LEAVING_KEYS = [
    "labeler",
    "kind",
    "before",
    "known",
    "group",
    "rows_remembered",
    "given_up",
    "releases",
    "randomized_labels",
    "statistic_releases",
    "epsilon",
    "delta",
    "rows_set_aside",
    "unreadable_files",
    "remains",
]
# Top-level keys of `--json`, in this order; a test checks them against the commands.
JSON_KEYS = {
    "account rr": ["epsilon", "delta", "labels", "compositions"],
    "account statistic": [
        "epsilon",
        "delta",
        "releases",
        "noise_multiplier",
        "epsilon_of_one",
        "epsilon_zcdp",
    ],
    "audit rr": AUDIT_KEYS,
    "audit statistic": AUDIT_KEYS,
    "budget anchor": ["anchor", "number", "digest"],
    "budget export": ["path", "format", "rows"],
    "budget combine": ["unit", "epsilon", "delta", "ceiling", "projects"],
    "budget show": ["policy", "closing", "ceiling", "lifetime", "allowances"],
    "budget labeler": ["pseudonym", "allowances"],
    "budget verify": ["ok", "fault", "journal_entries", "releases"],
    "labeler erase": LEAVING_KEYS,
    "labeler retire": LEAVING_KEYS,
    "policy activate": [
        "activates",
        "epsilon",
        "delta",
        "unit",
        "closes",
        "total",
        "ceiling",
    ],
    "policy check": [
        "policy",
        "epsilon",
        "delta",
        "unit",
        "rows_read",
        "rows",
        "refused_rows",
        "labelers",
        "new",
        "released_before",
        "charged",
        "left",
        "dropped_by_bound",
        "exhausted_labelers",
        "short",
        "fits",
    ],
    "policy close": ["name", "point", "epsilon", "delta"],
    "policy distinct": ["new", "people"],
    "policy groups": ["added", "labelers", "groups"],
    "policy new": POLICY_KEYS,
    "policy show": POLICY_KEYS,
    "project backup": [
        "path",
        "bytes",
        "anchor",
        "journal_entries",
        "releases",
        "unfinished",
        "keys",
        "left_out",
    ],
    "project restore": [
        "project",
        "complete",
        "closed",
        "lost_policies",
        "abandoned",
        "releases",
        "backup",
        "created_at",
        "backup_anchor",
        "anchor",
        "keys",
    ],
    "project ceiling": ["ceiling", "reached", "left", "raised"],
    "project witness": ["project", "journal_entries", "proven_to", "anchor"],
    "project rotate-pseudonyms": ["project", "renamed"],
    "release abandon": ["id", "charged"],
    "demo": ["id", "path", "reused", "card", "next"],
    "people link": ["linked", "people"],
    "people list": ["linked", "distinct"],
    "plan": [
        "adjacency",
        "delta",
        "features",
        "agreement",
        "unit",
        "counts",
        "forecasts",
        "recommended",
        "epsilon",
        "command",
        "notes",
    ],
    "privatize": ["id", "path", "reused", "card", "next"],
    "release show": [
        "release",
        "labelguard",
        "format",
        "created_at",
        "kind",
        "mechanism",
        "mechanism_version",
        "privacy",
        "counts",
        "flip_probability",
        "budget",
        "train_with",
        "not_protected",
    ],
    "release verify": ["ok", "fault", "releases"],
    "score": ["path", "pairs"],
    "simulate": ["path", "rows", "columns"],
    "source add": ["name", "people", "columns", "at"],
}
# The same for each entry of the list that these commands print.
JSON_ENTRY_KEYS = {
    "budget journal": ["number", "at", "kind", "body", "previous", "digest"],
    "doctor": ["name", "ok", "detail"],
    "labeler list": ["pseudonym", "kind", "at"],
    "policy list": [
        "name",
        "state",
        "created_at",
        "epsilon",
        "delta",
        "unit",
        "allowances",
        "costs",
    ],
    "source list": ["name", "people", "columns", "at"],
    "release list": ["id", "state", "created_at", "mechanism", "charged", "rows", "path"],
}

_VARIABLES_HEAD = """
| environment variable | |
|---|---|
"""

_HEAD = """\
# Command line

Generated from `labelguard --help` by `python docs/generate_cli.py`; do not edit by hand.

Results go to standard output; notes, errors and progress go to standard error. An error is one
line that says what is wrong, where, and what to do; it never holds a label.

| exit code | meaning |
|---|---|
"""

ENVIRONMENT = {
    "LABELGUARD_PROJECT": "the project directory, where `--project` is not given",
    "LABELGUARD_KEYS": "the project's keys directory; default `.labelguard/keys`",
    "LABELGUARD_KEY_FILE": "a file to read the project key from, where that directory has none",
    "LABELGUARD_KEY_COMMAND": "the same: a command that prints it",
    "LABELGUARD_LEDGER_URL": "the ledger's database; default: an SQLite file in the project",
    "LABELGUARD_PASSPHRASE": "the passphrase of a backup's keys",
    "LABELGUARD_CACHE": "where vectors of public texts are cached",
    "XDG_STATE_HOME": "where `labelguard/projects` lists the projects you made; default "
    "`~/.local/state`",
}

_JSON_HEAD = """\
## JSON output

Every command with `--json` prints one JSON document: an object, or a list of objects.

| command | prints | keys |
|---|---|---|
"""


def commands(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of this project with its path (`("account", "rr")`), groups before members."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            # Other packages may add commands of their own; they are not ours to document.
            if child and child.callback and child.callback.__module__.startswith("labelguard"):
                yield from commands(child, (*path, name))


def help_text(path: tuple[str, ...], command: click.Command) -> str:
    """What `--help` prints on a terminal of 80 columns."""
    context = click.Context(
        command,
        info_name=" ".join(["labelguard", *path]),
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        help_option_names=["-h", "--help"],
    )
    return command.get_help(context)


def page() -> str:
    """The text of docs/cli.md."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    sections = "".join(
        f"\n## {' '.join(['labelguard', *path])}\n\n```text\n{help_text(path, command)}\n```\n"
        for path, command in commands()
    )
    rows = [(name, "object", keys) for name, keys in JSON_KEYS.items()]
    rows += [(name, "list", keys) for name, keys in JSON_ENTRY_KEYS.items()]
    table = "".join(
        f"| `{name}` | {kind} | {', '.join(f'`{key}`' for key in keys)} |\n"
        for name, kind, keys in sorted(rows)
    )
    variables = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in ENVIRONMENT.items())
    return f"{_HEAD}{codes}{_VARIABLES_HEAD}{variables}{sections}\n{_JSON_HEAD}{table}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
