"""`labelguard train`: preference models from releases."""

from __future__ import annotations

import click

from labelguard.cli.options import HELP


@click.group("train", context_settings=HELP, short_help="Train models on a release.")
def train_group() -> None:
    """Train models on a release, by losses that know each row's noise."""
