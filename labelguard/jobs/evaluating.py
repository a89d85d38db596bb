"""The statistic of labelers who are held out, in the coordinates of a job's first model."""

from __future__ import annotations

from pathlib import Path

from labelguard.errors import LabelguardError
from labelguard.jobs import releasing
from labelguard.jobs.releasing import Wanted
from labelguard.jobs.settings import Job
from labelguard.jobs.state import Facts, UnderWay
from labelguard.project.project import Project
from labelguard.terms import Progress

MECHANISM = "evaluation"


def evaluate(job: Job, home: Project, run: UnderWay, candidate: Path, progress: Progress) -> Facts:
    """Which release says how good heads are, and what it charged.

    Where no labeler who is held out gave a label since, the newest one says it still.
    """
    own = {name: value for name, value in job.options.items() if name in _READING}
    own["head"] = str(candidate)  # it must have the coordinates of the evaluation before
    asked = Wanted(MECHANISM, 1, job.source, job.settings.source, "drop", own)
    found = releasing.release(asked, home, run, progress)
    release = found.release or releasing.newest(home, MECHANISM, None)
    if release is None:
        raise LabelguardError(
            f"gate.by: held-out has nothing to judge by ({found.why}); wait for labels of those "
            "who are held out, or take another gate"
        )
    return {"release": release, "charged": found.charged}


_READING = ("columns", "question", "format", "split", "bad_rows", "max_input_bytes", "workers")
