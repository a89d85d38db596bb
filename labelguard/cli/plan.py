"""Commands that read an input and charge nothing: `inspect`, `plan`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard.budget.request import PolicyRequest
from labelguard.cli.options import (
    HELP,
    Command,
    declared_options,
    directory_option,
    inputs_argument,
    public_columns_option,
    reading_options,
    source_option,
)
from labelguard.cli.terminal import (
    echo,
    measure_terminal_width,
    print_bullets,
    print_facts,
    print_next_commands,
    print_notes,
    print_table,
    prints,
    show_progress,
    to_json,
)
from labelguard.errors import NoProject, PolicyError
from labelguard.options import RunOptions
from labelguard.text import AGREEMENT_HELP, describe_reason_counts, pluralize

if TYPE_CHECKING:
    from labelguard.inputs.sources import Input
    from labelguard.planner.advice import PlanResult
    from labelguard.report.inspection import Bar, Inspection


_MASK = "•"
_LONGEST_BAR = 40


def _print_inspection(inspection: Inspection) -> None:
    print_facts(_list_inspection_facts(inspection))
    if inspection.labelers:
        _print_histogram(inspection.labelers.histogram)
    for number, example in enumerate(inspection.examples, 1):
        echo(f"\n{_shorten_to_line(f'pair {number}', example.prompt)}")
        for side in (example.first, example.second):
            echo(_shorten_to_line(f"  {_MASK}", side))
    if inspection.examples:
        echo(f"\n{_MASK} which response is preferred is not shown")
    if inspection.notes:
        print_bullets(inspection.notes)
    if inspection.problems:
        print_bullets(f"A release would be refused: {problem}" for problem in inspection.problems)
    if inspection.next:
        echo()
        print_next_commands(inspection.next)


def _list_inspection_facts(inspection: Inspection) -> Iterator[tuple[str, str]]:
    yield "format", f"{inspection.format}: {inspection.about}"
    read = (role for role in inspection.roles if role.read)
    named = (r.role if r.role == r.column else f"{r.role} = {r.column}" for r in read)
    yield "columns", ", ".join(named)
    labels = [role.column for role in inspection.roles if not role.read]
    if labels:
        yield "  of labels", f"{', '.join(labels)} (not shown)"
    yield "  labels mean", inspection.meaning
    if inspection.unused:
        yield "  not used", ", ".join(inspection.unused)
    yield "rows", f"{inspection.rows:,}"
    if inspection.bad_rows:
        why = f"most: {inspection.bad_row_reason}"
        yield (
            "  cannot be used",
            f"{inspection.bad_rows:,} ({why}); --bad-rows quarantine sets them aside",
        )
    if inspection.left_out:
        yield "  left out", describe_reason_counts(inspection.left_out)
    yield "  identical sides", f"{inspection.identical_sides:,}"
    yield "  repeated", f"{inspection.repeated:,}"
    pairs = pluralize(inspection.pairs, "distinct pair")
    if inspection.answers == "labels":
        yield "labels", f"{inspection.labels:,} of {pairs}"
    else:
        compared = pluralize(inspection.comparisons, "pair")
        yield inspection.answers, f"{inspection.labels:,} ({compared}) of {pairs}"
    for question in inspection.questions:
        yield "  question", f"{question.name}: {pluralize(question.pairs, 'pair')}"
    if inspection.labelers:
        own = inspection.labelers
        yield "labelers", f"{own.count:,}"
        spread = f"{own.least:,} / {own.median:,g} / {own.most:,}"
        yield f"  {inspection.answers} of each", f"{spread}  (min / median / max)"


def _print_histogram(bars: tuple[Bar, ...]) -> None:
    """Print how many labelers have how many labels, as bars below the facts."""
    names = [f"{b.least:,}" if b.least == b.most else f"{b.least:,}–{b.most:,}" for b in bars]
    indent, most = max(map(len, names)), max(bar.labelers for bar in bars)
    for name, bar in zip(names, bars, strict=True):
        length = -(-bar.labelers * _LONGEST_BAR // most)
        echo(f"    {name:>{indent}}  {'▇' * length} {bar.labelers:,}")


def _shorten_to_line(name: str, text: str) -> str:
    """A name and the beginning of a text, in one line of the terminal."""
    room = max(measure_terminal_width() - len("pair 9") - 2, 20)
    line = " ".join(text.split())
    return f"{name:<{len('pair 9')}}  {line if len(line) <= room else line[: room - 1] + '…'}"


@click.command(
    cls=Command,
    context_settings=HELP,
    short_help="Tell how an input is understood; shows no label.",
)
@inputs_argument()
@reading_options(
    *("columns", "label_values", "ignore_columns", "format", "split", "question"),
    *("drop_members", "max_input_bytes"),
)
@public_columns_option
@prints(_print_inspection)
def inspect(inputs: tuple[str, ...], **options: Any) -> Inspection:
    """Show how INPUT is understood: its columns, labelers and pairs, and the next command to run.

    INPUT is as in privatize. No label is shown: the output tells only how many of them mean
    nothing. Needs no project and charges nothing.

    \b
    Example:
      labelguard inspect labels.parquet --label-values 1-0
    """
    from labelguard.report.inspection import inspect as run

    with show_progress() as report:
        return run(list(inputs), progress=report, **options)


_HIDDEN_ON_TERMINALS = 1  # the widest column, public parameters, is in the page and in JSON


def _print_plan(result: PlanResult) -> None:
    from labelguard.planner.advice import describe_input, summarize

    given = click.get_current_context().params
    echo(f"{describe_input(result)}; no label was read, nothing was charged")
    if given["every"]:
        _print_forecast_table(result)
    for line in summarize(result):
        echo(line)
    if output := given["output"]:
        echo(f"Page: {output / 'plan.html'}")
    if given["every"]:
        commands = [one.command for one in result.recommended if one.command]
    else:
        commands = [result.choice.command] if result.choice and result.choice.command else []
    print_next_commands(commands, ", at the ε that you choose" if len(commands) > 1 else "")


def _print_forecast_table(result: PlanResult) -> None:
    """Print every mechanism at every ε, and what to expect of the best."""
    from labelguard.planner.advice import HEADINGS, forecast_table_rows

    rows = (
        (cells[0], cells[1] + (" *" if automatic else ""), *cells[2:-_HIDDEN_ON_TERMINALS])
        for cells, automatic in forecast_table_rows(result)
    )
    names = HEADINGS[:-_HIDDEN_ON_TERMINALS]
    print_table(names, rows, right=set(names) - {"mechanism"}, gap=1, wrap=False)
    echo("* what --mechanism auto takes at this ε; ≤ K: at most K labels of each labeler\n")
    for one in result.recommended:
        echo(one.words)
    echo()


@click.command(
    cls=Command,
    context_settings=HELP,
    short_help="Recommend a release; reads no label, costs nothing.",
)
@inputs_argument(required=False)
@click.option("--epsilons", default="0.5,1,3,8", metavar="E,...", help="ε to forecast.")
@click.option(
    "--delta",
    type=float,
    help="δ of each labeler; default: a power of ten below 1/(10 · labelers), 1e-5 at most.",
)
@click.option(
    "--features",
    metavar="SPEC",
    help="length, style, minilm, hf:ID_OR_PATH, text, source:COLUMN, verdict:NAME, "
    "reward:ID_OR_PATH, columns:a,b, or a sum of these; default: length+style+minilm where the "
    "extra `encoders` is installed, else length+style+text.",
)
@declared_options(RunOptions, "uses", "recurring", "duration")
@click.option(
    "--agreement",
    type=float,
    help=f"{AGREEMENT_HELP}; default: any from .6 to .85. Not taken from the labels.",
)
@reading_options()
@declared_options(
    PolicyRequest,
    *("unit", "public_columns", "turns"),
    unit={
        "type": click.Choice(["labeler", "item"]),
        "default": "labeler",
        "help": "What is protected as a whole.",
    },
)
@click.option(
    "--max-labels-per-labeler",
    type=int,
    metavar="K",
    help="Bound of randomized response; default: the best of several.",
)
@click.option("--all", "every", is_flag=True, help="Print every mechanism at every ε.")
@declared_options(RunOptions, "engine", "address", "buckets", "workers")
@directory_option("plan", help="Write plan.html, accuracy.png and plan.json to DIR.")
@source_option
@prints(_print_plan, wait=True)
def plan(
    inputs: tuple[str, ...],
    epsilons: str,
    output: Path | None,
    uses: int | None,
    recurring: str | None,
    duration: str | None,
    every: bool,
    project: Path | None,
    namespace: str | None,
    **options: Any,
) -> PlanResult:
    """Recommend how to release the labels in INPUT, and say what to expect; no label is read.

    INPUT is as in privatize; columns of labels may be missing and are not read. Without INPUT, it
    plans for labels ingested from annotation tools, of --source if there are several. Labels are
    simulated over the real pairs, labelers and counts, for every mechanism at every ε (--all).
    Of several releases, each has as many new labels as INPUT. Charges nothing, and needs no
    project if INPUT is given. Workers of --engine read files and encode texts, and need to see
    TMPDIR.

    \b
    Example:
      labelguard plan labels.parquet --label-values 1-0 --features text+length -o plan
      labelguard plan labels.parquet --label-values 1-0 --epsilons 3 --recurring weekly --for 1y
    """
    from labelguard.budget.request import Horizon
    from labelguard.planner.forecast import plan as run

    horizon = Horizon.parse(recurring, duration)
    if horizon and uses is not None:
        raise PolicyError("give one of --uses and --recurring")
    periods = horizon.releases if horizon else 1 if uses is None else uses
    budgets = _parse_epsilons(epsilons)
    options |= {"uses": periods}
    with show_progress() as report, contextlib.ExitStack() as stack:
        source: Input = list(inputs)
        if not inputs:
            from labelguard.release.intake import open_ingested

            try:
                source, options = stack.enter_context(open_ingested(project, namespace, options))
            except NoProject as error:
                raise click.UsageError(f"no INPUT was given, and {error}") from None
        result = run(source, budgets, progress=report, **options)
    if output is not None:
        _write_plan_files(result, output)
    print_notes(result.notes)
    return result


def _parse_epsilons(text: str) -> tuple[float, ...]:
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    try:
        return tuple(sorted({float(piece) for piece in pieces}))
    except ValueError:
        raise PolicyError(f"--epsilons expects numbers like .5,1,3, found {text!r}") from None


def _write_plan_files(result: PlanResult, output: Path) -> None:
    from labelguard.planner.advice import draw_accuracy, render_page

    output.mkdir(parents=True, exist_ok=True)
    png = draw_accuracy(result)
    (output / "accuracy.png").write_bytes(png)
    (output / "plan.html").write_text(render_page(result, png), encoding="utf-8")
    (output / "plan.json").write_text(to_json(result) + "\n", encoding="utf-8")
