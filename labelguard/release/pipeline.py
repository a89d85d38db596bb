"""`privatize`: raw preference labels in, a labeler-level private release out, its budget accounted.

The order of a release is plan → charge → draw → learn → publish, and each step can crash:

1. the input is staged canonically, and the release's idempotency key is computed from its public
   columns; a request that was answered before is answered again without looking at labels;
2. rows, bounds and charges are planned from public columns;
3. one ledger transaction charges and reserves; it yields the grant that the next steps need;
4. labels are randomized into the PRIVATE map, which is flushed and renamed as a whole; the ledger
   then marks the release as drawn, with the map's keyed digest, and the randomness, which was in
   memory only, is forgotten;
5. what a mechanism learns, it learns from released rows; where that takes long, other jobs may have
   the project meanwhile, and the scratch space with raw labels is gone before they do;
6. the output is written from the map and the public texts alone, flushed, renamed, committed.

A crash before the mark discards what was drawn, and the same command draws everything afresh:
nothing was visible, so one charge is right. After it, the map is taken as it is and no label is
read. So there is one charge and one answer, whatever happens, and no randomness to come back to.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from labelguard.errors import NoProject, ProjectError
from labelguard.inputs.sources import Input
from labelguard.learning.features import Wait
from labelguard.project import attempts
from labelguard.project.opening import OpenProject, Where, init, located
from labelguard.project.project import Project
from labelguard.release import delivery, request
from labelguard.release.preview import Plan
from labelguard.release.request import Keywords, Ours, check_names, request_release
from labelguard.release.run import Review, Run
from labelguard.release.writer import Release
from labelguard.text import Progress, no_progress


def privatize(
    source: Input | None = None,
    *,
    mechanism: Ours = "auto",
    namespace: str | None = None,
    project: Where = None,
    progress: Progress = no_progress,
    review: Review | None = None,
    wait: Wait | None = None,
    **options: Unpack[Keywords],
) -> Release:
    """Release a table of preference labels with labeler-level label differential privacy.

    `source` is a path, a glob, `-` for standard input, a table (pyarrow, polars, pandas, datasets),
    splits by name, a list of these, or a list of rows (dictionaries); without one, what was
    ingested is released (`project.ingestion`). The first call fixes the project's policy, unless
    one was made before (`project.policies`); later calls release new labels under it, and labels
    released before keep their value at no cost. `namespace` names the source of these labelers' ids
    (default: that of `labelguard.toml`, or the only one ingested; see `project.linking`). `review`
    is called with a `Preview` before anything is charged, unless a run is taken up that was begun
    before; `wait`, at a first release, with the seconds that computing features for its forecast
    will take. What they raise stops the run.

    `options` are those of the command line (docs/cli.md), with `_` for `-`; `--for` is `duration`,
    and `--public-column` `public_columns`. Those of another package's mechanism, which a type
    checker does not know, pass as a dictionary with that mechanism.

    Guarantee: (ε, δ) of the policy for each of its units under `replace_labels`, over all releases
    that it pays for, against anyone who sees neither raw labels nor the memory of a running job
    (docs/guarantees.md).

    Raises `InvalidLabels`, `PolicyError`, `BudgetExceeded`, `ProjectBusy`, `KeyProblem`,
    `LedgerError`, `ProjectError`; then nothing new was released.

    Example:
        >>> study = lg.init("study")
        >>> made = lg.privatize("labels.parquet", mechanism="rr", epsilon=3, project=study)
        >>> made.card["counts"]["rows"], made.card["privacy"]["epsilon"]
        (900, 3.0)
        >>> lg.privatize("labels.parquet", mechanism="rr", epsilon=3, project=study).reused
        True
    """
    check_names(mechanism, options)
    found = located(project)
    with attempts.noted(found), _room_in(found), contextlib.ExitStack() as claimed:
        source, home, given = _meant(source, found, namespace, options)
        request = request_release(home, mechanism, given)
        delivery.check(request.output)
        with OpenProject.job(home) as opened:
            made = Run(opened, request, progress, review, wait).run(source)
            if isinstance(made, Release):
                return made
            if not made.prepared.apart:
                return made.learned().committed()
            apart = made.apart(claimed)
        return apart.learned().committed_later(home)


def plan(
    source: Input | None = None,
    *,
    mechanism: str = "auto",
    namespace: str | None = None,
    project: Where = None,
    progress: Progress = no_progress,
    **options: Any,
) -> Plan:
    """Return the plan of a release: what `privatize` would fix, charge and give.

    Takes what `privatize` takes and raises what it raises. Where there is no project, it is said of
    one that would be made. Its rows are in a directory that the next command clears.
    """
    check_names(mechanism, options)
    with _project_or_none(project) as found, _room_in(found):
        source, home, given = _meant(source, found, namespace, options)
        request = request_release(home, mechanism, given)
        with OpenProject.job(home) as opened:
            return Run(opened, request, progress).plan(source)


def _meant(
    source: Input | None, home: Project, namespace: str | None, options: Mapping[str, Any]
) -> tuple[Input, Project, Mapping[str, Any]]:
    """The input that is meant, the project as it names its labelers, and how it is read."""
    if source is None:
        return request.choose_ingested(home, namespace, options)
    return source, replace(home, namespace=namespace or home.namespace), options


@contextlib.contextmanager
def _project_or_none(where: Where) -> Iterator[Project]:
    """The project that is meant, or one for the time being where none is."""
    try:
        found = located(where)
    except NoProject:
        # What the environment names belongs to a project that is there, or should be.
        elsewhere = ("LABELGUARD_KEY", "LABELGUARD_LEDGER")
        if where is not None or any(name.startswith(elsewhere) for name in os.environ):
            raise
        found = None
    if found:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="labelguard-") as directory:
        yield init(Path(directory), lasting=False)


@contextlib.contextmanager
def _room_in(home: Project) -> Iterator[None]:
    """Say of a full disk, or memory, what it means for a release."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise ProjectError(
            f"cannot write in {home.state}: {getattr(error, 'strerror', None) or error}; "
            "nothing is lost: make room and run the same command again"
        ) from None
