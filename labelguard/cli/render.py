"""How results look on a terminal, or as JSON; progress goes to standard error."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from labelguard.cli.terminal import echo, print_facts, print_json, print_table, shown, table
from labelguard.release import card as cards
from labelguard.release.card import own_facts, place
from labelguard.terms import budget_of, counted

if TYPE_CHECKING:
    from labelguard.release.writer import Release
    from labelguard.report.doctor import Check
    from labelguard.terms import Progress


def _path(path: Path) -> str:
    """A path as it may be typed here."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=None)
        yield lambda step, share: bar.update(
            task, description=shown(step), total=None if share is None else 1, completed=share or 0
        )


def release(result: Release, *, as_json: bool, next_steps: Sequence[str]) -> None:
    """The summary of a release: whom it protects, what it cost, where it is."""
    for note in result.notes:
        echo(f"labelguard: note: {shown(note)}", err=True)
    if as_json:
        summary = {"id": result.id, "path": str(result.path), "reused": result.reused}
        print_json(summary | {"card": dict(result.card), "next": list(next_steps)})
        return
    print_facts([*_card_facts(result.card), ("where", _path(result.path))])
    if result.reused:
        echo(
            "This very release was made before: no label was looked at, nothing was charged.\n"
            "To draw the labels anew, at a new charge: --again"
        )
    echo("Next: " + "\n      ".join(_runnable(step) for step in next_steps))


def _runnable(command: str) -> str:
    """A command as it can be typed here, where no environment may be activated."""
    program = Path(sys.argv[0])
    if program.name == "labelguard" and shutil.which("labelguard") is None:
        return command.replace("labelguard", str(program), 1)
    return command


def card(value: Mapping[str, Any], *, as_json: bool) -> None:
    """A release's card."""
    if as_json:
        print_json(value)
        return
    print_facts(
        [
            *_card_facts(value),
            ("train with", value["train_with"]),
            *(
                ("" if number else "not protected", f"· {line}")
                for number, line in enumerate(value["not_protected"])
            ),
        ]
    )


def _card_facts(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    privacy, counts = value["privacy"], value["counts"]
    unit = privacy["unit"]
    yield "release", value["release"]
    yield "guarantee", f"{budget_of(privacy)} for each {unit}, over {cards.span(privacy)}"
    if "newly_charged" in privacy:
        yield "  newly charged", f"{budget_of(privacy['newly_charged'])} of it, by that policy"
    yield "mechanism", f"{value['mechanism']}, adjacency {privacy['adjacency']}"
    yield f"{unit}s", f"{counts['labelers']:,}"
    yield "labels", f"{counts['rows']:,} released of {counts['rows_read']:,} read"
    if counts["further_pairs"]:
        yield "  further pairs", f"{counts['further_pairs']:,} (labeled by the head)"
    charged = f"{counts['charged']:,}"
    yield "  newly charged", charged if place(value) == "label" else f"{charged} {unit}s, once each"
    before = "same value" if place(value) == "label" else "in an earlier window"
    yield "  released before", f"{counts['released_before']:,} ({before}, no charge)"
    yield "  dropped by the bound", f"{counts['dropped_by_bound']:,}"
    yield "  duplicates", f"{counts['duplicates']:,}"
    yield "  identical sides", f"{counts['identical_sides']:,}"
    if counts["set_aside"]:
        yield "  bad rows set aside", f"{counts['set_aside']:,}"
    if counts["released_ties_dropped"]:
        yield "  released as ties", f"{counts['released_ties_dropped']:,} (left out)"
    if "flip_probability" in value:
        flips = value["flip_probability"]
        yield "flip probability", _triple(flips, ".4f")
        multipliers = {k: 1 / (1 - 2 * v) if v < 0.5 else float("inf") for k, v in flips.items()}
        yield "loss multiplier 1/(1−2γ)", _triple(multipliers, ".1f")
    yield from (fact for fact in own_facts(value) if not fact[0].startswith("flip probability"))
    yield "allowance used", _triple(value["budget"]["used"], ",.0f")
    yield "allowance left", _triple(value["budget"]["left"], ",.0f")


def _triple(values: Mapping[str, float], style: str) -> str:
    if not values:
        return "–"
    shown = " / ".join(format(values[name], style) for name in ("min", "median", "max"))
    return f"{shown}  (min / median / max)"


def comparison(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Composition theorems side by side."""
    if as_json:
        print_json(value)
        return
    echo(f"{budget_of(value)}, {counted(value['labels'], 'label')} of one labeler")
    numbers = ("ε0 per label", "flip probability", "loss multiplier")
    rows = table("composition", *numbers, right=numbers)
    for name, row in value["compositions"].items():
        rows.add_row(
            name,
            f"{row['epsilon0']:.6f}",
            f"{row['flip_probability']:.6f}",
            f"{row['loss_multiplier']:.1f}",
        )
    print_table(rows)


def noise(value: Mapping[str, Any], *, as_json: bool) -> None:
    """The noise of statistic releases."""
    if as_json:
        print_json(value)
        return
    releases = counted(value["releases"], "statistic release")
    print_facts(
        [
            ("budget", f"{budget_of(value)} for {releases} of one labeler's labels"),
            ("noise multiplier", f"{value['noise_multiplier']:.6f} sensitivities in each"),
            ("one alone", f"ε = {value['epsilon_of_one']:.4f} at the same δ"),
            ("all, by zCDP", f"ε = {value['epsilon_zcdp']:.4f} (an upper bound)"),
        ]
    )


def releases(values: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """The releases of a project."""
    if as_json:
        print_json(values)
        return
    if not values:
        echo("No release yet.")
        return
    numbers = ("charged", "rows")
    rows = table("id", "state", "created", "mechanism", *numbers, right=numbers)
    for value in values:
        released = "–" if value["rows"] is None else f"{value['rows']:,}"
        charged = f"{value['charged']:,}"
        shown = (value["id"], value["state"], value["created_at"], value["mechanism"])
        rows.add_row(*shown, charged, released)
    print_table(rows)


def abandoned(value: Mapping[str, Any], *, as_json: bool) -> None:
    """That a release was given up."""
    if as_json:
        print_json(value)
        return
    uses = counted(value["charged"], "use")
    echo(f"Release {value['id']} is given up; the {uses} it charged stay charged.")


def verdict(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Whether something holds; ends the program with exit code 1 if not."""
    if as_json:
        print_json(value)
    elif value["ok"]:
        nouns = (("journal_entries", "journal entry"), ("releases", "release"))
        found = [counted(value[name], noun) for name, noun in nouns if name in value]
        echo(f"Everything holds: {', '.join(found)}.")
    else:
        echo(f"labelguard: {value['fault']}", err=True)
    if not value["ok"]:
        sys.exit(1)


def scored(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Where scored pairs were written."""
    if as_json:
        print_json(value)
        return
    echo(f"{counted(value['pairs'], 'pair')} labeled and written to {value['path']}")


def simulation(value: Mapping[str, Any], *, as_json: bool) -> None:
    """What was simulated."""
    if as_json:
        print_json(value)
        return
    echo(f"{value['rows']:,} simulated labels written to {value['path']}")


def checks(values: Sequence[Check], *, as_json: bool) -> None:
    """The findings of the doctor."""
    if as_json:
        print_json([asdict(value) for value in values])
        return
    indent = max(len(value.name) for value in values)
    for value in values:
        mark = "ok   " if value.ok else "FAULT"
        echo(f"{mark}  {value.name:<{indent}}  {value.detail}")
