"""The statistic of labelers who are held out, in the coordinates of a job's first model."""

from __future__ import annotations

from pathlib import Path

from labelguard.errors import LabelguardError
from labelguard.jobs import releasing
from labelguard.jobs.releasing import Wanted
from labelguard.jobs.settings import Job
from labelguard.jobs.state import Facts, UnderWay
from labelguard.project.project import Project
from labelguard.release.head import FILE
from labelguard.storage.files import write_atomically
from labelguard.terms import Progress

MECHANISM = "evaluation"
COORDINATES = "coordinates"


def evaluate(job: Job, home: Project, run: UnderWay, candidate: Path, progress: Progress) -> Facts:
    """Which release says how good heads are, and what it charged.

    Where no labeler who is held out gave a label since, the newest one says it still.
    """
    directory = run.state.directory / COORDINATES
    if not (directory / FILE).is_file():  # the first model's: all are judged in its coordinates
        directory.mkdir(mode=0o700, exist_ok=True)
        write_atomically(directory / FILE, (candidate / FILE).read_bytes(), mode=0o600)
    own = {name: value for name, value in job.options.items() if name in _READING}
    asked = Wanted(
        MECHANISM, 1, job.source, job.settings.source, "drop", own | {"head": str(directory)}
    )
    found = releasing.release(asked, home, run, progress)
    ended = [one.evaluation for one in run.state.ended() if one.evaluation]
    last = ended[-1] if ended else None
    release = found.release or releasing.newest(home, MECHANISM, last)
    if release is None:
        raise LabelguardError(
            f"gate.by: held-out has nothing to judge by ({found.why}); wait for labels of those "
            "who are held out, or take another gate"
        )
    return {"release": release, "charged": found.charged}


_READING = ("columns", "question", "format", "split", "bad_rows", "max_input_bytes", "workers")
