"""A job's numbers for Prometheus, in a file that node_exporter reads (its textfile collector).

They follow from the history of the job, which is public; why a run failed is one of the closed list
of reasons.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from labelguard import clock
from labelguard.errors import LabelguardError, ProjectBusy
from labelguard.jobs.state import JobState
from labelguard.project.attempts import REASONS, find_reason
from labelguard.storage.files import write_atomically

FILE = "metrics.prom"
_OUTCOMES = ("promoted", "rejected", "unchanged", "failed")


@contextlib.contextmanager
def write_metrics(state: JobState) -> Iterator[None]:
    """Write a job's numbers when the run inside ends, however it does; a busy one goes on later."""
    try:
        yield
    except ProjectBusy:
        raise
    except Exception as error:
        _write(state, find_reason(error))
        raise
    _write(state, "")


def _write(state: JobState, failed_for: str) -> None:
    with contextlib.suppress(OSError, LabelguardError):  # which fail no run, nor hide why one did
        text = "".join(f"{line}\n" for line in _list_lines(state, failed_for))
        write_atomically(state.directory / FILE, text.encode(), mode=0o600)


def _list_lines(state: JobState, failed_for: str) -> Iterator[str]:
    runs, job = state.read_ended_runs(), f'job="{state.directory.name}"'
    ends = [clock.parse_time(run.ended_at).timestamp() for run in runs if run.outcome != "failed"]
    times = {"run": clock.parse_time(clock.now()).timestamp(), "success": max(ends, default=0)}
    for name, seconds in times.items():
        yield f"# TYPE labelguard_job_last_{name}_timestamp gauge"
        yield f"labelguard_job_last_{name}_timestamp{{{job}}} {seconds:.0f}"
    yield "# TYPE labelguard_job_failed gauge"
    for reason in REASONS:
        yield f'labelguard_job_failed{{{job},reason="{reason}"}} {int(reason == failed_for)}'
    yield "# TYPE labelguard_job_runs_total counter"
    counts = Counter(run.outcome for run in runs)
    for outcome in _OUTCOMES:
        yield f'labelguard_job_runs_total{{{job},outcome="{outcome}"}} {counts[outcome]}'
    yield "# TYPE labelguard_job_releases_total counter"
    releases = {run.release for run in runs if run.release}
    yield f"labelguard_job_releases_total{{{job}}} {len(releases)}"
