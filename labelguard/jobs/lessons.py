"""What makes a model what it is: equal lessons make no new model, and are not judged twice."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from labelguard.jobs.settings import Job
from labelguard.jobs.state import State
from labelguard.jobs.steps import Step


def trained_by(job: Job, step: Step) -> dict[str, Any]:
    """By what a job trains and judges, as JSON."""
    gate = job.settings.gate.model_dump(mode="json")
    return {"step": step.name, "options": dict(step.identity()), "gate": gate}


def lesson(job: Job, step: Step, release: str) -> str:
    """Digest of all that decides what is learned from a release, and whether it is good enough."""
    content = {"release": release, **trained_by(job, step)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def judged_before(state: State, lesson: str, in_use: str | None) -> bool:
    """Whether a run learned this and came to its end, and no model was lost since.

    `in_use` is the model in use.
    """
    counts = ("promoted", "kept") if in_use else ("kept",)
    return any(one.lesson == lesson for one in state.ended() if one.outcome in counts)


def last_release(state: State) -> str | None:
    """The release that the job learned from last."""
    ended = [one.release for one in state.ended() if one.release]
    return ended[-1] if ended else None
