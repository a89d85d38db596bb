"""`labelguard plan`: forecasts of what a release may give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from labelguard.cli.options import (
    HELP,
    bad_rows_option,
    columns_option,
    max_input_bytes_option,
)
from labelguard.errors import PolicyError
from labelguard.terms import DEFAULT_AGREEMENT, DEFAULT_FEATURES

if TYPE_CHECKING:
    from labelguard.planner.forecast import PlanResult

__all__ = ["plan"]

_HIDDEN_ON_TERMINALS = 1  # the widest column, public parameters, is in the page and in JSON


@click.command(
    context_settings=HELP, short_help="Forecast every mechanism; reads no label, costs nothing."
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "--epsilons", default="0.5,1,3,8", show_default=True, metavar="E,...", help="ε to forecast."
)
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ of each labeler.")
@click.option(
    "--features",
    default=DEFAULT_FEATURES,
    show_default=True,
    metavar="SPEC",
    help="minilm, hf:ID_OR_PATH, text, length, columns:a,b, or a sum of these.",
)
@click.option(
    "--agreement",
    type=float,
    default=DEFAULT_AGREEMENT,
    show_default=True,
    help="How often two labelers agree on a strict label; not taken from the labels.",
)
@columns_option
@click.option(
    "--unit",
    type=click.Choice(["labeler", "item"]),
    default="labeler",
    show_default=True,
    help="What is protected as a whole.",
)
@click.option(
    "--max-labels-per-labeler",
    type=int,
    metavar="K",
    help="Bound of randomized response; default: the best of several.",
)
@bad_rows_option
@max_input_bytes_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write plan.html, accuracy.png and plan.json to DIR.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def plan(
    inputs: tuple[str, ...],
    epsilons: str,
    delta: float,
    features: str,
    agreement: float,
    columns: str,
    unit: str,
    max_labels_per_labeler: int | None,
    bad_rows: str,
    max_input_bytes: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Forecast what each mechanism gives on INPUT, without reading a label.

    INPUT is as in privatize; columns of labels may be missing and are not read. Labels are
    simulated over the real pairs, labelers and counts. Needs no project and charges nothing.

    \b
    Example:
      labelguard plan labels.parquet --features text+length -o plan
    """
    from labelguard.cli import render
    from labelguard.ingest import layouts
    from labelguard.planner.forecast import PlanOptions
    from labelguard.planner.forecast import plan as run

    options = PlanOptions(
        epsilons=_epsilons(epsilons),
        delta=delta,
        features=features,
        agreement=agreement,
        unit=unit,
        columns=layouts.parse_columns(columns),
        max_labels_per_labeler=max_labels_per_labeler,
        bad_rows=bad_rows,
        max_input_bytes=max_input_bytes,
    )
    if output is not None:
        _require_pictures()
    with render.progress() as progress:
        found = run(list(inputs), options, progress=progress)
    if output is not None:
        _write(found, output)
    from labelguard.cli.terminal import echo

    for note in found.notes:
        echo(f"labelguard: note: {note}", err=True)
    if as_json:
        click.echo(_json(found))
    else:
        _print(found, output)


def _epsilons(text: str) -> tuple[float, ...]:
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    try:
        return tuple(sorted({float(piece) for piece in pieces}))
    except ValueError:
        raise PolicyError(f"--epsilons expects numbers like .5,1,3, found {text!r}") from None


def _require_pictures() -> None:
    """Refuse before the work is done, not after it."""
    from importlib.util import find_spec

    from labelguard.learning.features import MissingExtra

    if find_spec("matplotlib") is None:
        raise MissingExtra("-o needs matplotlib; install it with: pip install labelguard[plan]")


def _json(found: PlanResult) -> str:
    return json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)


def _write(found: PlanResult, output: Path) -> None:
    from labelguard.planner.charts import accuracy_png
    from labelguard.planner.page import page

    output.mkdir(parents=True, exist_ok=True)
    png = accuracy_png(found)
    (output / "accuracy.png").write_bytes(png)
    (output / "plan.html").write_text(page(found, png), encoding="utf-8")
    (output / "plan.json").write_text(_json(found) + "\n", encoding="utf-8")


def _print(found: PlanResult, output: Path | None) -> None:
    import shutil

    from rich.console import Console
    from rich.table import Table

    from labelguard.cli.terminal import echo
    from labelguard.planner.page import HEADINGS, table

    click.echo(
        f"{found.labelers:,} labelers, {found.labels:,} labels of {found.pairs:,} pairs, "
        f"δ = {found.options.delta:g}; no label was read, nothing was charged"
    )
    shown = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for heading in HEADINGS[:-_HIDDEN_ON_TERMINALS]:
        justify: Literal["left", "right"] = "left" if heading == "mechanism" else "right"
        shown.add_column(heading, justify=justify, no_wrap=True)
    for cells, best in table(found):
        name = cells[1] + (" *" if best else "")
        shown.add_row(cells[0], name, *cells[2:-_HIDDEN_ON_TERMINALS])
    columns = shutil.get_terminal_size(fallback=(100, 24)).columns
    console = Console(width=columns, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(shown)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))
    click.echo("* recommended at this ε")
    if output is not None:
        click.echo(f"Page: {output / 'plan.html'}")
    echo(f"Next: {found.command}")
