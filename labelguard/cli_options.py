"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path

import click

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every group and of commands that may be run without one."""

project_option = click.option(
    "--project",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Project directory; else LABELGUARD_PROJECT, else the nearest one upwards.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
