"""`retrain`: one run of a job, from new labels to the model in use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import project_option, wait_option
from labelguard.cli.terminal import echo, print_facts, prints, progress, shown

if TYPE_CHECKING:
    from labelguard.jobs.run import Retrained


def _print(result: Retrained) -> None:
    taken_up = ", taken up" if result.resumed else ""
    facts = [
        ("job", f"{result.job}, run {result.run}{taken_up}"),
        ("outcome", f"{result.outcome}: {result.why}"),
    ]
    if result.release:
        facts.append(("release", f"{result.release} ({result.mechanism})"))
    facts.append(("charged", f"{result.charged:,} for {result.new_labels:,} new labels"))
    if result.judgement:
        facts.append(("gate", f"{result.judgement['by']}; cost {result.judgement['cost']}"))
    facts.append(("model in use", result.model or "none yet"))
    facts.append(("budget", result.budget))
    print_facts(facts)
    for note in result.notes:
        echo(f"labelguard: note: {shown(note)}", err=True)


@click.command(short_help="Release, train and promote: one run of a job.")
@click.argument("job", type=click.Path(path_type=Path), metavar="JOB", default="job.yaml")
@click.option("--strict", is_flag=True, help="Exit with 3 when the budget is exhausted.")
@project_option
@wait_option
@prints(_print)
def retrain(job: Path, strict: bool, project: Path | None) -> Retrained:
    """Do one run of JOB (default job.yaml): release what is new, learn from it, and promote the
    model if its gate says so.

    Run it from any scheduler; a run that was killed is finished by the next.

    \b
    Example:
      labelguard retrain job.yaml
    """
    from labelguard.jobs.run import retrain as run

    with progress() as report:
        result = run(job, project=project, progress=report)
    if strict and result.budget == "exhausted":
        click.get_current_context().call_on_close(lambda: sys.exit(3))
    return result
