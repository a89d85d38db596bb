"""`retrain`: one run of a job, from new labels to the model in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.terminal import echo, print_facts, print_next, print_notes, prints, progress
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard.jobs.dry_run import RunPreview
    from labelguard.jobs.run import Retrained
    from labelguard.jobs.start import JobFile


_OUTCOMES = {"promoted": "promoted (in use from now on)"}


def _print_result(result: Retrained) -> None:
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
    facts += [("model in use", result.model or "none yet"), ("budget", result.budget)]
    print_facts(facts)
    print_notes(result.notes)


def _preview_facts(preview: RunPreview) -> Iterator[tuple[str, str]]:
    yield "job", preview.job
    if preview.under_way:
        yield "", f"run {preview.under_way} was begun and would be resumed"
    if preview.pulls:
        yield "pulls", f"{', '.join(preview.pulls)}; what is new there is not counted below"
    if preview.releases:
        yield "releases", f"{pluralize(preview.new_labels, 'new label')} by {preview.mechanism}"
        yield "charges", f"{preview.charged:,}" if preview.charged else "nothing more"
    else:
        yield "releases", f"nothing: {preview.why}"
    if preview.left:
        few, most = (f"{preview.left[name]:,.0f}" for name in ("min", "max"))
        yield "left then", f"{few if few == most else f'{few} to {most}'} of each labeler"
    yield "budget", preview.budget
    yield "trains", preview.trains or "nothing: there is nothing new to learn from"
    yield "judged by", preview.gate
    in_use = preview.replaces or "none yet"
    yield "puts into use", f"{preview.promotes or 'nothing'}; in use is {in_use}"


def _print_job_file(result: JobFile) -> None:
    echo(f"Job written to {result.path}, for policy {result.policy}.")
    if result.drafted:
        echo("That policy is a draft: look at it, and put it into force.")
    print_next(result.next)


def _print(result: Retrained | RunPreview | JobFile) -> None:
    show: Mapping[str, Callable[[Any], None]] = {
        "Retrained": _print_result,
        "RunPreview": lambda preview: print_facts(_preview_facts(preview)),
        "JobFile": _print_job_file,
    }
    show[type(result).__name__](result)


def _exit_code(result: object) -> int:
    """Return 3 where --strict is given and the budget is exhausted."""
    strict = click.get_current_context().params["strict"]
    return 3 if strict and getattr(result, "budget", "left") == "exhausted" else 0


@click.command(short_help="Release, train, judge and promote: one run of a job.")
@click.argument("job", type=click.Path(path_type=Path), metavar="[JOB]", default="job.yaml")
@click.option("--dry-run", is_flag=True, help="Show what a run would do and cost, and stop.")
@click.option("--init", "start", is_flag=True, help="Write JOB for the policy in force, and stop.")
@click.option("--strict", is_flag=True, help="Exit with 3 when the budget is exhausted.")
@prints(_print, code=_exit_code, wait=True)
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
    with progress() as report:
        if dry_run:
            from labelguard.jobs import dry_run as preview

            return preview.dry_run(job, project=project, progress=report)
        from labelguard.jobs.run import retrain as run

        return run(job, project=project, progress=report)
