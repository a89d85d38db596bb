"""Commands between a project and other tools: `pull`, `ingest`, `connect`, `retrain`, `export`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from labelguard.cli.options import (
    HELP,
    Command,
    CommandGroup,
    complete_releases_else_files,
    directory_option,
)
from labelguard.cli.terminal import (
    confirm,
    echo,
    format_range,
    format_relative_path,
    print_facts,
    print_next_commands,
    print_notes,
    print_table,
    prints,
    show_progress,
)
from labelguard.release.frameworks import NOISES, FrameworkName
from labelguard.text import describe_reason_counts, pluralize

if TYPE_CHECKING:
    from labelguard.jobs.run import Retrained, RunPreview
    from labelguard.jobs.start import JobFile
    from labelguard.project.ingestion import IngestionResult
    from labelguard.project.retention import ForgottenConnector
    from labelguard.release.export import ExportResult
    from labelguard.report.doctor import ConnectorCheck


def _print_ingested(value: IngestionResult) -> None:
    facts = [("new", pluralize(value.answers, "answer"))]
    gone = "deleted in the tool; their released labels stay released"
    for name, number, what in (
        ("deleted", value.deleted, gone),
        ("known", value.known, "as before"),
        ("refused", value.refused, "of labelers who have left"),
        ("forgotten", value.forgotten, "after their release"),
    ):
        if number:
            facts.append((name, f"{pluralize(number, 'answer')} {what}"))
    if value.left_out:
        facts.append(("left out", describe_reason_counts(value.left_out)))
    print_facts(facts)
    print_notes([value.waits] if value.waits else [])


@click.command(cls=Command, short_help="Ingest the answers in the hook's inbox.")
@prints(_print_ingested, wait=True)
def ingest(project: Path | None) -> IngestionResult:
    """Ingest the answers in the hook's inbox, and forget what need not be kept.

    Answers are then stored sealed in the project, by labeler; `labelguard privatize` without INPUT
    releases them. With `keep = "90d"` under `[ingest]` in labelguard.toml, an answer is forgotten
    90 days after its labels were released, those of all questions that releases asked for by then.

    \b
    Example:
      labelguard ingest
    """
    from labelguard.project import ingestion

    with show_progress() as report:
        return ingestion.ingest(project, report)


@click.command(cls=Command, short_help="Read new answers from an annotation tool.")
@click.argument("name")
@prints(_print_ingested, wait=True)
def pull(name: str, project: Path | None) -> IngestionResult:
    """Read the answers of connector NAME that are new since the last pull.

    NAME is that of a table [connectors.NAME] in labelguard.toml. A stopped pull resumes where it
    was; running it again reads nothing twice.

    \b
    Example:
      labelguard pull label-studio
    """
    from labelguard.project import ingestion

    with show_progress() as report:
        return ingestion.pull(name, project, report)


@click.group(cls=CommandGroup, context_settings=HELP)
def connect() -> None:
    """Connectors to annotation tools, as labelguard.toml names them."""


def _print_checked(value: ConnectorCheck) -> None:
    facts = [("connector", f"{value.connector} ({value.kind})"), ("source", value.source)]
    facts += [(name, text) for name, text in value.about.items()]
    if value.question:
        facts.append(("reads", value.question))
    skipped = f", {value.skipped} skipped" if value.skipped else ""
    read = f"{pluralize(len(value.comparisons), 'comparison')}{skipped}"
    facts.append(("understood", f"{read} in {pluralize(value.answers, 'answer')}"))
    if value.left_out:
        facts.append(("left out", describe_reason_counts(value.left_out)))
    print_facts(facts)
    rows = ((c.labeler, c.prompt, *c.responses, c.fault or "(hidden)") for c in value.comparisons)
    print_table(("labeler", "prompt", "response", "response", "label"), rows)
    print_notes(value.notes)


@connect.command("check", short_help="Show what a connector understands.")
@click.argument("name")
@prints(_print_checked, project=True)
def connect_check(name: str, project: Path | None) -> ConnectorCheck:
    """Read ten answers of connector NAME and show what was understood. Nothing is stored.

    \b
    Example:
      labelguard connect check label-studio
    """
    from labelguard.report.doctor import check_connector

    return check_connector(name, project)


@connect.command("reconcile", short_help="Repair what a hook missed.")
@click.argument("name")
@click.option(
    "--accept-deletions",
    is_flag=True,
    help="Treat missing answers as deleted, even if the tool lists less than half of them.",
)
@prints(_print_ingested, wait=True)
def connect_reconcile(name: str, accept_deletions: bool, project: Path | None) -> IngestionResult:
    """Compare the tool's answers with those received, and repair the difference.

    A hook misses events while it is down, and tools do not announce every event.

    \b
    Example:
      labelguard connect reconcile label-studio
    """
    from labelguard.project import ingestion

    with show_progress() as report:
        return ingestion.reconcile(name, project, report, accept_deletions=accept_deletions)


def _print_forgotten(value: ForgottenConnector) -> None:
    facts = [("dropped", f"{pluralize(value.dropped, 'answer')} that no release holds")]
    if value.waiting:
        facts.append(("", f"{pluralize(value.waiting, 'answer')} that waited to be ingested"))
    if value.released:
        facts.append(("kept", f"{pluralize(value.released, 'answer')} that were released"))
    facts.append(("next pull", "reads everything anew"))
    print_facts(facts)


@connect.command("forget", short_help="Drop a connector's unreleased answers.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@prints(_print_forgotten, wait=True)
def connect_forget(name: str, yes: bool, project: Path | None) -> ForgottenConnector:
    """Drop the answers of connector NAME that were never released, and those in the inbox.

    All answers of a source are read in one way. Where a connector read other columns or another
    question, its answers make way: change labelguard.toml, and pull again. NAME need not be in
    labelguard.toml any more. Answers that were released stay, and so does what was charged.

    \b
    Example:
      labelguard connect forget label-studio
    """
    from labelguard.project import retention

    if not yes:
        confirm(f"Drop the unreleased answers of connector {name}?")
    return retention.forget_connector(name, project)


_OUTCOMES = {"promoted": "promoted (in use from now on)"}


def _describe_remaining_budget(result: Retrained | RunPreview) -> str:
    """Return how much labelers have left, by the counts of the ledger."""
    if (use := result.allowance) is None:
        return result.budget
    shown = f"{format_range(use.left_per_labeler)} left of each labeler"
    if use.exhausted_labelers:
        shown += f"; {use.exhausted_labelers:,} of {use.labelers:,} have nothing left"
    return shown if result.budget == "left" else f"{result.budget}: {shown}"


def _print_run_result(result: Retrained) -> None:
    from labelguard.budget.events import describe_uses

    resumed = ", resumed" if result.resumed else ""
    learned_from = f"{result.release}, by {result.mechanism}" if result.release else "none yet"
    new = pluralize(result.new_labels, "new label")
    facts = [
        ("job", f"{result.job}, run {result.run}{resumed}"),
        ("outcome", f"{_OUTCOMES.get(result.outcome, result.outcome)}: {result.why}"),
        ("release", learned_from),
        ("charged", f"{describe_uses(result.charged_by)}, for {new}"),
    ]
    if result.judgement:
        judgement = result.judgement
        facts.append(("judged by", f"{judgement['by']}, which cost {judgement['cost']}"))
    facts.append(("model in use", result.model or "none yet"))
    facts.append(("budget", _describe_remaining_budget(result)))
    print_facts(facts)
    print_notes(result.notes)


def _list_preview_facts(preview: RunPreview) -> Iterator[tuple[str, str]]:
    yield "job", preview.job
    if preview.under_way:
        yield "", f"run {preview.under_way} was begun and would be resumed"
    uncounted = "what is new there is not counted below"
    if preview.pulls:
        yield "pulls", f"{', '.join(preview.pulls)}; {uncounted}"
    if preview.ingests:
        waiting = pluralize(preview.ingests, "answer")
        yield "ingests", f"{waiting} waiting in the inbox; {uncounted}"
    if preview.releases:
        yield "releases", f"{pluralize(preview.new_labels, 'new label')} by {preview.mechanism}"
        yield "charges", f"{preview.charged:,}" if preview.charged else "nothing more"
    else:
        yield "releases", f"nothing: {preview.why}"
    if preview.left:
        yield "left then", f"{format_range(preview.left)} of each labeler"
    yield "budget", _describe_remaining_budget(preview)
    yield "trains", preview.trains or "nothing: every release was learned from before"
    yield "judged by", preview.gate
    in_use = f"in use is {preview.replaces}" if preview.replaces else "no model in use yet"
    yield "puts into use", f"{preview.promotes or 'nothing'}; {in_use}"


def _print_job_file(result: JobFile) -> None:
    echo(f"Job written to {result.path}, for policy {result.policy}.")
    if result.drafted:
        echo("That policy is a draft: review it, and put it into force.")
    print_next_commands(result.next)


def _print_retrain_result(result: Retrained | RunPreview | JobFile) -> None:
    show: Mapping[str, Callable[[Any], None]] = {
        "Retrained": _print_run_result,
        "RunPreview": lambda preview: print_facts(_list_preview_facts(preview)),
        "JobFile": _print_job_file,
    }
    show[type(result).__name__](result)


def _find_strict_exit_code(result: object) -> int:
    """Return 3 where --strict is given and the budget is exhausted."""
    strict = click.get_current_context().params["strict"]
    return 3 if strict and getattr(result, "budget", "left") == "exhausted" else 0


@click.command(cls=Command, short_help="Release, train, judge and promote: one run of a job.")
@click.argument("job", type=click.Path(path_type=Path), metavar="[JOB]", default="job.yaml")
@click.option("--dry-run", is_flag=True, help="Show what a run would do and cost, and stop.")
@click.option("--init", "start", is_flag=True, help="Write JOB for the policy in force, and stop.")
@click.option("--strict", is_flag=True, help="Exit with 3 when the budget is exhausted.")
@prints(_print_retrain_result, code=_find_strict_exit_code, wait=True)
def retrain(
    job: Path, dry_run: bool, start: bool, strict: bool, project: Path | None
) -> Retrained | RunPreview | JobFile:
    """Do one run of JOB (default job.yaml): pull and release what is new, learn from it, and
    promote the model if its gate says so.

    Any scheduler may start it. A killed run is finished by the next start; two starts at once do
    one run. It releases under the policy in force, and agrees to nothing else.

    \b
    Example:
      labelguard retrain --init
      labelguard retrain job.yaml --dry-run
      labelguard retrain job.yaml
    """
    if dry_run and start:
        raise click.UsageError("--dry-run and --init exclude each other")
    if start:
        from labelguard.jobs.start import write_job

        return write_job(job, project)
    with show_progress() as report:
        if dry_run:
            from labelguard.jobs.run import dry_run as preview_run

            return preview_run(job, project=project, progress=report)
        from labelguard.jobs.run import retrain as run

        return run(job, project=project, progress=report)


class _Trainer(click.Choice):  # type: ignore[type-arg]
    """Names of trainers; of one that reads no rows, what it takes instead."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "verl":
            self.fail("verl reads no rows: call lg.reward in its reward function", param, ctx)
        return super().convert(value, param, ctx)


def _print_exported(value: ExportResult) -> None:
    rate = "" if value.rate is None else f" at the rate {value.rate:.6g}"
    written = f"{pluralize(value.rows, 'pair')} written to {format_relative_path(value.path)}"
    hard = ": probabilities are dropped; --copies 10 keeps them" * (value.noise == "hard")
    echo(f"{written}; noise: {value.noise}{rate}{hard}")
    echo(f"{value.guarantee[0].upper()}{value.guarantee[1:]}")
    echo(f"Train: {value.command}")
    print_notes(value.notes)


@click.command("export", cls=Command, short_help="Write a release for another trainer.")
@click.argument("release", metavar="RELEASE", shell_complete=complete_releases_else_files)
@click.option(
    "--to",
    type=_Trainer(get_args(FrameworkName)),
    required=True,
    help="The trainer that reads it; jsonl is for a script of your own.",
)
@directory_option("exported", required=True, help="New directory to write.")
@click.option(
    "--copies",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Write each pair N times, with sides swapped in proportion to its probability.",
)
@click.option(
    "--noise",
    type=click.Choice(NOISES),
    default="auto",
    help="How flipped labels are taken: as they are; by the trainer's unbiased robust loss; as the "
    "teacher's probability; or as that, joined with the label.",
)
@click.option(
    "--teacher",
    metavar="RELEASE",
    help="A release with a head that reads texts, for --noise soft and posterior.",
)
@prints(_print_exported, project=True)
def export(release: str, output: Path, project: Path | None, **options: Any) -> ExportResult:
    """Write RELEASE (its id, or a directory with a copy of it) as another trainer's rows.

    Beside the rows are the file by which the trainer finds them, README.md with its command, and
    the card. Nothing is charged. See docs/training.md#other-trainers.

    \b
    Example:
      labelguard release export r0001 --to trl -o for-trl
      labelguard release export r0001 --to axolotl -o for-axolotl
    """
    from labelguard.release.export import export as write_export

    directory: str | Path = Path(release) if Path(release).is_dir() else release
    teacher = options.pop("teacher")
    with show_progress() as report:
        return write_export(
            directory,
            output,
            teacher=Path(teacher) if teacher and Path(teacher).is_dir() else teacher,
            project=project,
            progress=report,
            **options,
        )
