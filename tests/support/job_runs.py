"""Runs of jobs that have ended, as a project remembers them."""

import json
from dataclasses import asdict
from typing import Any

from labelguard.project.runs import HISTORY, JobRun


def ran(number=1, **more):
    """A run of the job `nightly`, whose candidate was promoted."""
    facts: dict[str, Any] = {
        "job": "nightly",
        "run": number,
        "outcome": "promoted",
        "budget": "left",
        "started_at": "2026-01-05T00:00:00Z",
        "ended_at": f"2026-01-05T00:{number:02d}:00Z",
        "why": "the candidate is better",
        "release": "r0001",
        "mechanism": "rr",
        "new_labels": 5,
        "charged": 5,
        "model": f"{number:04d}",
        "judgement": {
            "measure": "accuracy",
            "candidate": 0.6 + number / 100,
            "current": None if number == 1 else 0.6,
        },
        "curve": [{"step": 1, "loss": 0.69}, {"step": 2, "loss": 0.5}],
    }
    return JobRun(**facts | more)


def remember(project, *runs):
    """Write the history of the job."""
    directory = project.jobs / "nightly"
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(run)) + "\n" for run in runs)
    (directory / HISTORY).write_text(text)
