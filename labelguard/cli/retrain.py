"""`retrain`: one run of a job, from new labels to the model in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.terminal import echo, print_facts, print_next, print_notes, prints, progress
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard.jobs.dry_run import Intended
    from labelguard.jobs.run import Retrained
    from labelguard.jobs.starting import Written


def _retrained(result: Retrained) -> None:
    from labelguard.budget.events import describe_uses

    taken_up = ", taken up" if result.resumed else ""
    learned = f"{result.release}, by {result.mechanism}" if result.release else "none yet"
    new = pluralize(result.new_labels, "new label")
    facts = [
        ("job", f"{result.job}, run {result.run}{taken_up}"),
        ("outcome", f"{result.outcome}: {result.why}"),
        ("release", learned),
        ("charged", f"{describe_uses(result.charged_by)}, for {new}"),
    ]
    if result.judgement:
        judged = result.judgement
        facts.append(("gate", f"{judged['by']}, which cost {judged['cost']}"))
    facts += [("model in use", result.model or "none yet"), ("budget", result.budget)]
    print_facts(facts)
    print_notes(result.notes)


def _intended(result: Intended) -> None:
    print_facts(_intentions(result))


def _intentions(result: Intended) -> Iterator[tuple[str, str]]:
    yield "job", result.job
    if result.under_way:
        yield "", f"run {result.under_way} was begun and would be taken up"
    if result.pulls:
        yield "pulls", f"{', '.join(result.pulls)}; what is new there is not counted below"
    if result.releases:
        yield "releases", f"{pluralize(result.new_labels, 'new label')} by {result.mechanism}"
        more = f"{result.charged:,}" if result.charged else "nothing more"
        yield "charges", more
    else:
        yield "releases", f"nothing: {result.why}"
    if result.left:
        few, most = (f"{result.left[name]:,.0f}" for name in ("min", "max"))
        yield "left then", f"{few if few == most else f'{few} to {most}'} of each labeler"
    yield "budget", result.budget
    yield "trains", result.trains or "nothing: there is nothing new to learn from"
    yield "gate", result.gate
    yield "promotes", f"{result.promotes or 'nothing'}; in use is {result.replaces or 'none yet'}"


def _written(result: Written) -> None:
    echo(f"Job written to {result.path}, for policy {result.policy}.")
    if result.drafted:
        echo("That policy is a draft: look at it, and put it into force.")
    print_next(result.next)


def _print(result: Retrained | Intended | Written) -> None:
    """Whichever of the three it is."""
    show: Mapping[str, Callable[[Any], None]]
    show = {"Retrained": _retrained, "Intended": _intended, "Written": _written}
    show[type(result).__name__](result)


def _code(result: object) -> int:
    """3 where --strict asks for it."""
    strict = click.get_current_context().params["strict"]
    return 3 if strict and getattr(result, "budget", "left") == "exhausted" else 0


@click.command(short_help="Release, train, judge and promote: one run of a job.")
@click.argument("job", type=click.Path(path_type=Path), metavar="[JOB]", default="job.yaml")
@click.option("--dry-run", is_flag=True, help="Say what a run would do and cost, and stop.")
@click.option("--init", "start", is_flag=True, help="Write JOB for the policy in force, and stop.")
@click.option("--strict", is_flag=True, help="Exit with 3 when the budget is exhausted.")
@prints(_print, code=_code, wait=True)
def retrain(
    job: Path, dry_run: bool, start: bool, strict: bool, project: Path | None
) -> Retrained | Intended | Written:
    """Do one run of JOB (default job.yaml): pull and release what is new, learn from it, and
    promote the model if its gate says so.

    Any scheduler may start it. A run that was killed is finished by the next start; two at once do
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
        from labelguard.jobs import starting

        return starting.start(job, project)
    with progress() as report:
        if dry_run:
            from labelguard.jobs import dry_run as looking

            return looking.dry_run(job, project=project, progress=report)
        from labelguard.jobs.run import retrain as run

        return run(job, project=project, progress=report)
