"""How results look on a terminal, or as JSON; progress goes to standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from labelguard.doctor import Check
    from labelguard.pipeline import Progress
    from labelguard.release import Release


def _console() -> Console:
    # Where nobody watches, lines must not depend on the width of a window that is not there.
    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", 100))
    return Console(width=width, highlight=False, soft_wrap=False)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """A progress line on standard error while a job runs; silent when not a terminal."""
    if not sys.stderr.isatty():
        yield lambda step, share: None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=None)
        yield lambda step, share: bar.update(
            task, description=step, total=None if share is None else 1, completed=share or 0
        )


def release(result: Release, *, as_json: bool, next_steps: Sequence[str] = ()) -> None:
    """The summary of a release: whom it protects, what it cost, where it is."""
    for note in result.notes:
        click.echo(f"labelguard: note: {note}", err=True)
    if as_json:
        summary = {"id": result.id, "path": str(result.path), "reused": result.reused}
        _print_json(summary | {"card": dict(result.card), "next": list(next_steps)})
        return
    table = _facts()
    table.add_row("release", result.id)
    for name, value in _card_rows(result.card):
        table.add_row(name, value)
    table.add_row("where", str(result.path))
    _console().print(table)
    if result.reused:
        click.echo(
            "This very release was made before: no label was read and nothing was charged. "
            "To draw the labels anew (a new charge): --again"
        )
    steps = next_steps or (f"labelguard release show {result.id}",)
    click.echo("Next: " + "\n      ".join(steps))


def card(value: Mapping[str, Any], *, as_json: bool) -> None:
    """A release's card."""
    if as_json:
        _print_json(value)
        return
    table = _facts()
    table.add_row("release", value["release"])
    for name, text in _card_rows(value):
        table.add_row(name, text)
    table.add_row("train with", value["train_with"])
    table.add_row("not protected", "\n".join(f"· {line}" for line in value["not_protected"]))
    _console().print(table)


def _card_rows(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    privacy, counts = value["privacy"], value["counts"]
    unit = privacy["unit"]
    yield (
        "guarantee",
        f"ε = {privacy['epsilon']:g}, δ = {privacy['delta']:g} for each {unit}, over the project "
        f"({value['mechanism']}, {privacy['adjacency']})",
    )
    yield f"{unit}s", f"{counts['labelers']:,}"
    yield "labels", f"{counts['rows']:,} released of {counts['rows_read']:,} read"
    yield "  newly charged", f"{counts['charged']:,}"
    yield "  released before", f"{counts['released_before']:,} (same value, no charge)"
    yield "  dropped by the bound", f"{counts['dropped_by_bound']:,}"
    yield "  duplicates", f"{counts['duplicates']:,}"
    yield "  identical sides", f"{counts['identical_sides']:,}"
    flips = value["flip_probability"]
    yield "flip probability", _triple(flips, ".4f")
    multipliers = {k: 1 / (1 - 2 * v) if v < 0.5 else float("inf") for k, v in flips.items()}
    yield "loss multiplier 1/(1−2γ)", _triple(multipliers, ".1f")
    yield "places used", _triple(value["budget"]["used"], ",.0f")
    yield "places left", _triple(value["budget"]["left"], ",.0f")


def _triple(values: Mapping[str, float], style: str) -> str:
    if not values:
        return "–"
    shown = " / ".join(format(values[name], style) for name in ("min", "median", "max"))
    return f"{shown}  (min / median / max)"


def comparison(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Composition theorems side by side."""
    if as_json:
        _print_json(value)
        return
    title = f"ε = {value['epsilon']:g}, δ = {value['delta']:g}, {value['labels']:,} labels"
    table = Table(title=title, title_justify="left")
    for name in ("composition", "ε0 per label", "flip probability", "loss multiplier"):
        table.add_column(name, justify="left" if name == "composition" else "right")
    for name, row in value["compositions"].items():
        table.add_row(
            name,
            f"{row['epsilon0']:.6f}",
            f"{row['flip_probability']:.6f}",
            f"{row['loss_multiplier']:.1f}",
        )
    _console().print(table)


def budget(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Policy and places."""
    if as_json:
        _print_json(value)
        return
    policy = value["policy"]
    if policy is None:
        click.echo("Nothing was released yet: the first privatize fixes the policy.")
        return
    table = _facts()
    unit = policy["unit"]
    table.add_row("policy", f"ε = {policy['epsilon']:g}, δ = {policy['delta']:g} for each {unit}")
    bound = policy["max_labels_per_labeler"]
    places = f"{bound:,}" if bound else "own number of labels, rounded up to 8, 16, 32, …"
    table.add_row(f"places of a {unit}", places)
    table.add_row("composition, ties", f"{policy['composition']}, {policy['ties']}")
    table.add_row(f"{unit}s", f"{value['labelers']:,}")
    table.add_row("exhausted", f"{value['exhausted_labelers']:,}")
    table.add_row("places used", f"{value['used']:,} of {value['places']:,}")
    for name in ("used", "left"):
        spread = value[f"{name}_per_labeler"]
        shown = " / ".join(f"{number:,.0f}" for number in spread.values())
        table.add_row(f"{name} per {unit}", f"{shown}  (min / quartiles / max)" if shown else "–")
    _console().print(table)


def labeler(value: Mapping[str, Any], *, as_json: bool) -> None:
    """One labeler's places."""
    if as_json:
        _print_json(value)
        return
    table = _facts()
    table.add_row("pseudonym", value["pseudonym"])
    table.add_row("places used", f"{value['used']:,} of {value['places']:,}")
    table.add_row("places left", f"{value['left']:,}")
    _console().print(table)


def journal(entries: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """The journal, one line an entry."""
    if as_json:
        _print_json(entries)
        return
    table = Table("no.", "at", "what", "details", "digest", box=None, header_style="bold")
    for entry in entries:
        body = {k: v for k, v in entry["body"].items() if k not in ("files", "settings")}
        details = ", ".join(f"{key} {value}" for key, value in body.items())
        table.add_row(
            str(entry["number"]), entry["at"], entry["kind"], details, entry["digest"][:12]
        )
    _console().print(table)


def releases(values: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """The releases of a project."""
    if as_json:
        _print_json(values)
        return
    if not values:
        click.echo("No release yet.")
        return
    table = Table("id", "state", "created", "mechanism", "charged", "rows", box=None)
    for value in values:
        rows = "–" if value["rows"] is None else f"{value['rows']:,}"
        charged = f"{value['charged']:,}"
        shown = (value["id"], value["state"], value["created_at"], value["mechanism"])
        table.add_row(*shown, charged, rows)
    _console().print(table)


def verdict(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Whether something holds; ends the program with exit code 1 if not."""
    if as_json:
        _print_json(value)
    elif value["ok"]:
        counted = [
            f"{v:,} {k.replace('_', ' ')}" for k, v in value.items() if k not in ("ok", "fault")
        ]
        click.echo(f"Everything holds: {', '.join(counted)}.")
    else:
        click.echo(f"labelguard: {value['fault']}", err=True)
    if not value["ok"]:
        sys.exit(1)


def simulation(value: Mapping[str, Any], *, as_json: bool) -> None:
    """What was simulated."""
    if as_json:
        _print_json(value)
        return
    click.echo(f"{value['rows']:,} simulated labels written to {value['path']}")


def checks(values: Sequence[Check], *, as_json: bool) -> None:
    """The findings of the doctor."""
    if as_json:
        _print_json([asdict(value) for value in values])
        return
    table = Table(box=None, show_header=False)
    for value in values:
        table.add_row("ok" if value.ok else "FAULT", value.name, value.detail)
    _console().print(table)


def _facts() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table
