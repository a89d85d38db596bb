"""`privatize`: the command that makes releases, its preview, and its questions."""

from __future__ import annotations

import functools
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard.budget import events
from labelguard.budget.label_values import LabelValues
from labelguard.budget.request import EVERY, Horizon, PolicyRequest
from labelguard.cli.options import (
    Command,
    build_click_settings,
    declared_options,
    directory_option,
    inputs_argument,
    project_option,
    reading_options,
    source_option,
    wait_option,
)
from labelguard.cli.release import list_card_facts
from labelguard.cli.terminal import (
    Reporter,
    echo,
    escape_controls,
    format_range,
    format_relative_path,
    print_facts,
    print_next_commands,
    print_notes,
    prints,
    show_progress,
)
from labelguard.errors import NoCoding, NoProject, NotAgreed, OutsideDomain, PolicyError
from labelguard.options import RunOptions, option_declarations
from labelguard.release.mechanisms import AUTO, collect_options, list_mechanisms
from labelguard.text import AGREEMENT_HELP, FORECAST_ASSUMPTION, format_budget, pluralize

if TYPE_CHECKING:
    from labelguard.project.project import Project
    from labelguard.release.plan import Preview
    from labelguard.release.writer import Release


_WAYS = {
    "once": "no: this release may spend all of ε, and no later label of theirs is released",
    "several": "yes, a number of times: the releases share ε, each with more noise",
    "regularly": "yes, every day, week or month for some time: the releases share ε, too",
}
_OPTIONS = (
    "--once                       they will not: this release may spend all of ε\n"
    "--uses K                     K releases in all share ε, each with more noise\n"
    "--recurring weekly --for 1y  as many as come in that time"
)


def is_release_count_given(options: Mapping[str, Any]) -> bool:
    """Return whether one of them is given, or contents are protected, which come once."""
    given = ("once", "uses", "recurring", "duration")
    return options["unit"] == "item" or any(options[name] not in (None, False) for name in given)


def ask_for_later_labels() -> Mapping[str, Any]:
    """Ask whether more labels of the same people will come; what that means, as options.

    Raises `UsageError` where nobody is there to ask.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(
            "a project's first release fixes how many releases share ε; say whether more labels of "
            f"the same people will come:\n{_OPTIONS}"
        )
    echo("Will more labels of the same people come later? This is fixed now, for good.", err=True)
    for way, meaning in _WAYS.items():
        echo(f"  {way:<9}  {meaning}", err=True)
    way = click.prompt("Later labels", type=click.Choice(list(_WAYS)), err=True)
    if way == "once":
        return {"once": True}
    if way == "several":
        number = click.IntRange(min=1)
        return {"uses": click.prompt("Releases in all, with this one", type=number, err=True)}
    every = click.prompt("How often", type=click.Choice(EVERY), default="weekly", err=True)
    parse = functools.partial(_parse_duration, every)
    duration = click.prompt("For how long", default="1y", value_proc=parse, err=True)
    return {"recurring": every, "duration": duration}


def ask_labeler_agreement(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask how often labelers agree, where somebody is there and a head may be fitted."""
    known = options["agreement"] is not None or options["mechanism"] == "rr"
    if known or not sys.stdin.isatty():
        return {}
    echo(f"{AGREEMENT_HELP}.", err=True)
    echo("Take it from elsewhere, not from these labels; probabilities are scaled by it.", err=True)
    share = click.prompt("Agreement", default=_UNKNOWN, value_proc=_parse_agreement, err=True)
    return {"agreement": share}


_UNKNOWN = "unknown"


def _parse_agreement(text: str) -> float | None:
    return None if text.strip() == _UNKNOWN else float(click.FloatRange(0.55, 0.9)(text))


def _parse_duration(every: str, text: str) -> str:
    try:
        return Horizon(every, text.strip()).length
    except PolicyError as error:
        raise click.BadParameter(str(error)) from None


def print_preview(preview: Preview, *, err: bool = False, notes: bool = True) -> None:
    """Print what a release will fix, cost and be like."""
    if preview.reused:
        echo(f"Release {preview.reused} answers this request: nothing would be charged.", err=err)
        return
    if preview.first:
        echo("The first release fixes this, for the life of the project:", err=err)
    print_facts(list(_list_preview_facts(preview)), err=err)
    print_notes(preview.notes if notes else ())


def _list_preview_facts(preview: Preview) -> Iterator[tuple[str, str]]:
    whole = (
        f"all labels of each {preview.unit} together" if preview.unit != "item" else "each content"
    )
    yield "protects", f"{whole}: {format_budget(preview)}"
    if usual := " and ".join(_SIGNS[name] for name in preview.usual):
        yield "", f"  {usual} by default; to change: --epsilon, --delta"
    learns = f", a head on {preview.features}" if preview.features else ""
    read = preview.understood
    yield "read as", read.format
    yield (
        "  columns",
        ", ".join(r if r == name else f"{r} = {name}" for r, name in read.columns.items()),
    )
    yield "  labels mean", read.meaning
    if read.unused:
        yield "  not used", ", ".join(read.unused)
    for example in preview.examples:
        yield "  example", " | ".join(map(_shorten, vars(example).values()))
    yield "mechanism", f"{preview.mechanism}{learns}"
    if preview.public_columns:
        listed = ", ".join(map(escape_controls, preview.public_columns))
        yield "declared public", f"{listed}: made from prompts and responses, not from answers"
    kind = events.find_event_kind(preview.event)
    yield "pays for", f"{pluralize(preview.allowed, kind.noun)} per {preview.unit}"
    if kind.keeps_values:
        held = f"up to {preview.block:,} new labels of a {preview.unit} in one release"
        yield "", f"  a block holds {held if preview.block > 1 else 'a single label'}"
    if preview.first and preview.allowed == 1:
        yield "", "  only this release is paid for; later labels need a new policy"
    if run := preview.sampling:
        who, most = f"each {preview.unit}", ""
        if run.records:
            who = "each label"
            most = f"; of one {preview.unit} {pluralize(run.records, 'label')} at most"
        steps = pluralize(run.steps, "step")
        yield "", f"  {steps}, {who} in a step with probability {run.probability:g}{most}"
    if preview.ball:
        yield "", f"  ball noise, priced for {pluralize(preview.ball, 'component')} or more"
    labels = f"{pluralize(preview.labels, 'label')} of {pluralize(preview.units, preview.unit)}"
    yield "this release", f"{labels}; charges {pluralize(preview.charged, kind.noun)}"
    if preview.left:
        yield "left for later files", f"{format_range(preview.left)} per {preview.unit}"
    yield from _describe_expected_quality(preview)


def _describe_expected_quality(preview: Preview) -> Iterator[tuple[str, str]]:
    if preview.label_error is not None:
        wrong = _round_to_percent(preview.label_error)
        differ = _round_to_percent(preview.disagreement)
        option = " (change with --agreement)" if preview.features else ""
        yield (
            "to expect",
            f"about {wrong} of 100 released labels will differ from what the labeler said, "
            f"assuming two people disagree on {differ}% of strict labels{option}",
        )
    if preview.accuracy is not None:
        right = _round_to_percent(preview.accuracy.mean)
        yield "", f"a model that learns from it agrees with about {right} of 100 new labels;"
        yield "", FORECAST_ASSUMPTION


def _shorten(text: str) -> str:
    """Return the beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST else line[: _MOST - 1] + "…"


_MOST = 40
_SIGNS = {"epsilon": "ε", "delta": "δ"}


def _round_to_percent(share: float) -> int:
    return math.floor(100 * share + 0.5)


def make_release_review(
    report: Reporter, *, yes: bool, accepted: bool, again: bool
) -> Callable[[Preview], None]:
    """Show a first release and ask; others need no question, unless they draw labels `again`.

    `yes` does for one that is recommended, or `accepted` though it is of little use. Raises
    `NotAgreed` where nobody can be asked or says no.
    """

    def review(preview: Preview) -> None:
        if not (preview.first or (again and preview.charged)):
            return
        with report.pause():
            poor = None if accepted else preview.discouraged
            print_preview(preview, err=True, notes=bool(poor) or not yes)
            if poor:
                _require_consent(
                    "Release it anyway?", f"{poor}; release it with --accept-little-use"
                )
            elif not yes:
                _require_consent("Release it?", "continue with --yes, or preview with --dry-run")

    return review


def _require_consent(question: str, otherwise: str) -> None:
    if not sys.stdin.isatty():
        raise NotAgreed(f"nothing was charged or released: no terminal to ask at; {otherwise}")
    if not click.confirm(question, err=True):
        raise NotAgreed("nothing was charged or released")


def find_or_make_project(where: Path | None, *, ask: bool) -> Project:
    """The project, or one made here if there is none and somebody at the terminal wants it.

    Never unless it may `ask`: what runs every night would make a new budget every night.
    """
    from labelguard.project.opening import init, locate_project

    try:
        return locate_project(where)
    except NoProject:
        if where is not None or not ask or not sys.stdin.isatty():
            raise
    echo(
        "No project here or above. A project keeps keys and what each labeler has spent.", err=True
    )
    _require_consent(f"Make one in {Path.cwd()}?", "labelguard init makes one")
    project = init(Path())
    state, keys = format_relative_path(project.state), format_relative_path(project.keys)
    echo(f"Project made in {state}; back up {keys}.", err=True)
    return project


@dataclass(frozen=True)
class ReleaseSummary:
    """A release that was made, or preview."""

    # its id
    id: str
    # its directory
    path: str
    # whether it was made before: no label was looked at, nothing was charged
    reused: bool
    # its card, as `release show` prints it
    card: Mapping[str, Any]
    # commands worth trying next
    next: Sequence[str]
    # what else to know
    notes: Sequence[str]

    @classmethod
    def from_release(cls, release: Release, next_steps: Sequence[str]) -> ReleaseSummary:
        """Return the summary of a release."""
        card, path = dict(release.card), str(release.path)
        return cls(release.id, path, release.reused, card, next_steps, release.notes)


def print_release_summary(made: ReleaseSummary) -> None:
    """The summary of a release: whom it protects, what it cost, where it is."""
    facts = [*list_card_facts(made.card), ("where", format_relative_path(made.path))]
    if made.reused:
        facts = [
            (f"{name} then" if name.startswith("allowance") else name, value)
            for name, value in facts
            if name.strip() != "newly charged"
        ]
    print_facts(facts)
    print_notes(made.notes)
    if made.reused:
        echo(
            "This release was made before: no label was read, nothing was charged.\n"
            "To draw the labels anew, at a new charge: --again\n"
            "Allowances now: labelguard budget show"
        )
    print_next_commands(made.next)


def _print_summary_or_preview(result: ReleaseSummary | Preview) -> None:
    print_release_summary(result) if isinstance(result, ReleaseSummary) else print_preview(result)


class _Privatize(Command):
    """`privatize`, with the options of all mechanisms that are installed."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own, and those of mechanisms before the last few."""
        own = super().get_params(ctx)
        last = [parameter.name for parameter in own].index("once")
        special = _build_mechanism_options(own)
        return [own[0], _mechanism_option(), *own[1:last], *special, *own[last:]]


def _mechanism_option() -> click.Option:
    return click.Option(
        ["--mechanism"],
        type=click.Choice([*list_mechanisms(), AUTO]),
        default=AUTO,
        help="How labels are privatized; auto: as earlier releases of the project, for the "
        "first what `labelguard plan` marks with *.",
    )


def _build_mechanism_options(own: list[click.Parameter]) -> Iterator[click.Option]:
    """Yield the options of mechanisms, each once."""
    taken = {parameter.name for parameter in own}
    for name, (mechanisms, option) in collect_options().items():
        if name not in taken:
            settings = build_click_settings(option, usual=False)
            text = f"{', '.join(mechanisms)}: {option.text}"
            yield click.Option([option.flag, name], **settings | {"help": text})


@click.command(cls=_Privatize, short_help="Release preference labels privately.")
@inputs_argument(required=False)
@declared_options(PolicyRequest)
@reading_options()
@source_option
@declared_options(RunOptions, without=["output"])
@click.option("--dry-run", is_flag=True, help="Show what would be released and charged, and stop.")
@click.option(
    "--yes", is_flag=True, help="Do not ask before a project's first release, or --again."
)
@directory_option("release", help=option_declarations(RunOptions)["output"].text)
@project_option
@wait_option
@prints(_print_summary_or_preview)
def privatize(
    inputs: tuple[str, ...],
    project: Path | None,
    dry_run: bool,
    yes: bool,
    **options: Any,
) -> ReleaseSummary | Preview:
    """Release the labels in INPUT (Parquet, CSV, JSON; files or globs) privately.

    Without INPUT, what was ingested from annotation tools is released (`labelguard pull`,
    `labelguard ingest`), of --source if there are several. INPUT has a column labeler_id and the
    columns of one of these layouts:

    \b
      prompt, chosen, rejected[, tie]
      prompt, response_a, response_b, label[, tie]
      prompt, responses, ranks
      prompt, responses, choice

    The first run fixes the project's policy, unless one was made before (`labelguard policy`): it
    asks whether more labels of the same people will come, shows what that means, and asks for
    confirmation. Running the same command again returns the same release; labels released before
    cost nothing in later releases.

    \b
    Example:
      labelguard privatize labels.parquet --label-values 1-0 --epsilon 3 --once --yes -o release
    """
    from labelguard.project import policies
    from labelguard.release.privatize import privatize as release_labels

    source = list(inputs) or None
    if dry_run:
        return _preview_release(source, project, options)
    home = find_or_make_project(project, ask=not yes)
    if not policies.listing(home):
        options |= {} if is_release_count_given(options) else ask_for_later_labels()
        options |= {} if yes else ask_labeler_agreement(options)

    def make(**more: Any) -> Release:
        with show_progress() as report:
            consent = {"accepted": options["accept_little_use"], "again": options["again"]}
            review = make_release_review(report, yes=yes, **consent)
            where: dict[str, Any] = {"project": home, "progress": report, "review": review}
            return release_labels(source, **where, **options | more)

    try:
        release = make()
    except (NoCoding, OutsideDomain) as error:
        if options["label_values"] is not None or not sys.stdin.isatty():
            raise
        echo(f"labelguard: {escape_controls(str(error))}", err=True)
        coding = click.prompt("Label values", value_proc=LabelValues.parse, err=True)
        release = make(label_values=str(coding))
    return ReleaseSummary.from_release(release, tuple(_suggest_next_commands(release, project)))


def _preview_release(
    source: list[str] | None, project: Path | None, options: dict[str, Any]
) -> Preview:
    """Preview a release; a first one is shown as for --once by default."""
    from labelguard.release.privatize import plan

    is_explicit = is_release_count_given(options)
    options = options if is_explicit else options | {"once": True}
    with show_progress() as report:
        preview = plan(source, project=project, progress=report, **options).preview
    if is_explicit or not preview.first:
        return preview
    note = "shown as for --once; with --uses K or --recurring weekly --for 1y releases share ε"
    return replace(preview, notes=(*preview.notes, note))


def _suggest_next_commands(release: Release, project: Path | None) -> Iterator[str]:
    """Yield commands to go on with: look at a release, learn from it, label more by its head."""
    where = f" --project {shlex.quote(str(project))}" if project else ""
    yield f"labelguard release show {release.id}{where}"
    if release.card["counts"]["rows"]:
        yield f"labelguard train dpo {release.id}{where} --model MODEL -o DIR"
    if (release.path / "head.npz").is_file():
        yield f"labelguard score {release.id} FILE{where} -o scored.parquet"
