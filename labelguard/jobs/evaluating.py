"""The statistic of labelers who are held out, and in whose coordinates a job's heads are judged."""

from __future__ import annotations

from pathlib import Path

from labelguard.errors import LabelguardError
from labelguard.jobs import releasing
from labelguard.jobs.releasing import Wanted
from labelguard.jobs.settings import Job
from labelguard.jobs.state import Facts, UnderWay
from labelguard.project.project import Project
from labelguard.release.evaluation import coordinates_in
from labelguard.release.head import FILE, Head
from labelguard.text import Progress

MECHANISM = "evaluation"
_ELSE = (
    "take another gate until there is one, or begin evaluations anew (labelguard privatize "
    "--mechanism evaluation --again --head DIRECTORY)"
)


def coordinates(home: Project, current: Path | None) -> Path | None:
    """The directory of what heads must share coordinates with: the newest evaluation of the
    project or, before there is one, the model in use.
    """
    newest = releasing.newest(home, MECHANISM, None)
    return home.releases / newest if newest else current


def check(mechanism: str, home: Project, current: Path | None) -> None:
    """Raise `LabelguardError` where the model in use, or the heads of the job's releases, are not
    in the coordinates of the evaluation: found before anything is charged.
    """
    directory = coordinates(home, current)
    if directory is None:
        return
    if current:
        _check_axes(directory, current, "the model in use")
    newest = releasing.newest(home, mechanism, None)
    if newest and (home.releases / newest / FILE).exists():
        _check_axes(directory, home.releases / newest, f"release {newest}")
    elif mechanism == "statistic":
        raise LabelguardError(
            "gate.by: held-out: a first statistic has coordinates of its own, and the gate judges "
            f"in those of {directory.name}; {_ELSE}"
        )


def evaluate(
    job: Job,
    home: Project,
    run: UnderWay,
    candidate: Path,
    current: Path | None,
    progress: Progress,
) -> Facts:
    """Which release says how good heads are, what it charged, and whether that was all it should.

    Where no labeler who is held out gave a label since that can be paid for, the newest one says it
    still.
    """
    directory = coordinates(home, current)
    if directory:
        for model, name in ((candidate, "the candidate"), (current, "the model in use")):
            if model:
                _check_axes(directory, model, name)
    own = {name: value for name, value in job.options.items() if name in _READING}
    if releasing.newest(home, MECHANISM, None) is None:
        own["head"] = str(candidate)
    asked = Wanted(MECHANISM, 1, job.source, job.settings.source, "drop", own)
    found = releasing.release(asked, home, run, progress)
    release = found.release or releasing.newest(home, MECHANISM, None)
    if release is None:
        raise LabelguardError(
            f"gate.by: held-out has nothing to judge by ({found.why}); wait for labels of those "
            "who are held out, or take another gate"
        )
    told = {"charged": found.charged, "exhausted": found.exhausted, "why": found.why}
    return {"release": release} | told


def _check_axes(directory: Path, model: Path, name: str) -> None:
    if not (model / FILE).exists():
        raise LabelguardError(f"gate.by: held-out judges heads, and {name} is none; {_ELSE}")
    head, found = Head.load(model), coordinates_in(directory)
    try:
        found.along(head.identity, head.coefficients)
    except LabelguardError:
        raise LabelguardError(
            f"gate.by: held-out: {name} has other coordinates than {directory.name}, in whose the "
            f"gate judges; {_ELSE}"
        ) from None


_READING = (
    *("columns", "question", "format", "split", "public_columns"),
    *("bad_rows", "max_input_bytes", "workers"),
)
