"""A first job.yaml, from what a project has: its policy, its last release, its connectors; nothing
is asked.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labelguard.answers.connector import Settings as Connector
from labelguard.budget.events import RANDOMIZED_LABELS, STATISTIC_RELEASES
from labelguard.budget.policy import USUAL_EPSILON, Policy, usual_delta
from labelguard.errors import LabelguardError
from labelguard.jobs import evaluating
from labelguard.jobs.gates import ACCURACY, CHANCE, LIKELIHOOD
from labelguard.jobs.options import relative_to, resolve_pattern
from labelguard.project import ingestion, policies
from labelguard.project.opening import OpenProject, Where, located
from labelguard.project.project import Project
from labelguard.release.evaluation import coordinates_in
from labelguard.report import overview

POLICY = "retraining"
_TEMPLATE = Path(__file__).with_name("job.yaml.j2")
# What the draft pays for: labels of a labeler, and a statistic every week of a year.
_LABELS, _RELEASES, _HELD_OUT = 64, 52, 0.1


@dataclass(frozen=True)
class Written:
    """A job that was written."""

    # its file
    path: str
    # the policy it was written for
    policy: str
    # whether that was made now, and waits for somebody to put it into force
    drafted: bool
    # commands to go on with
    next: Sequence[str]


@dataclass(frozen=True)
class Model:
    """What a job takes over of the project's last release: its mechanism, where its input lay (None
    for what was ingested, nothing where it was in memory), of which source, and its options.

    `train` are those of the step, where an evaluation of the project asks for its coordinates, and
    `comparable` says whether its heads are in them.
    """

    mechanism: str | None = None
    input: Sequence[str] | None = ()
    source: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    comparable: bool = True


def start(path: Path, project: Where = None) -> Written:
    """Write a job for the policy in force or, where there is none, for a draft that is made.

    Raises `LabelguardError` if the file exists; it stays as it is.
    """
    if path.exists() or path.is_symlink():
        raise LabelguardError(f"{path} exists; remove it, or name another file")
    home = located(project)
    policy, name, drafted = _policy(home)
    model = _model(home, path.absolute().parent, policy)
    text = text_of(policy, name, _way(home, path), _connectors(home, model), model)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise LabelguardError(f"cannot write {path}: {error.strerror}") from None
    shown = shlex.quote(str(path))
    force = [f"labelguard policy show {name}", f"labelguard policy activate {name}"]
    steps = (*(force if drafted else ()), f"labelguard retrain {shown} --dry-run")
    return Written(str(path), name, drafted, steps)


def _model(home: Project, base: Path, policy: Policy) -> Model:
    """The last release that trains, of a mechanism that the policy pays for; nothing without one.

    Paths are as seen from `base`, if that is the project's directory, else absolute.
    """
    made = [
        one
        for one in OpenProject.open(home).ledger.releases.all()
        if one.state == "committed" and one.part == "training" and one.event in policy.events
    ]
    if not made:
        return Model()
    settings, directory = made[-1].settings, home.state.parent
    request = settings.get("request") or {"input": (), "options": {}}
    own = dict(request["options"])
    if features := settings["choices"].get("features"):
        own["features"] = features
    paths = request.get("input")
    if base.resolve() != directory:
        own = relative_to(directory, own)
        paths = None if paths is None else [resolve_pattern(one, directory) for one in paths]
    source = request.get("namespace")
    source = None if source == home.namespace and paths is not None else source
    mechanism, train, comparable = settings["mechanism"], {}, True
    if evaluation := evaluating.coordinates(home, None):
        axes = coordinates_in(evaluation)
        train = {"features": axes.features, "components": axes.shape.components}
        try:
            evaluating.check(mechanism, home, None)
        except LabelguardError:
            comparable = False
    return Model(mechanism, paths, source, own, train, comparable)


def _policy(home: Project) -> tuple[Policy, str, bool]:
    """The policy in force, or the draft that is made where there is none."""
    found = overview.budget(home).policy
    if found:
        return found, found.name, False
    if any(one.name == POLICY for one in policies.listing(home)):
        return policies.show(POLICY, home), POLICY, True
    allow = [f"rr:labels={_LABELS}", f"statistic:releases={_RELEASES}"]
    made = policies.new(
        POLICY,
        epsilon=USUAL_EPSILON,
        delta=usual_delta(1),
        allow=allow,
        held_out=_HELD_OUT,
        project=home,
    )
    return made, POLICY, True


def _connectors(home: Project, model: Model) -> list[Connector]:
    """Those of one source: a release is of one. None where the last release was of files."""
    found = [] if model.input else list(ingestion.settings(home).values())
    source = model.source or (found[0].source if found else None)
    return [one for one in found if one.source == source]


def _way(home: Project, path: Path) -> str:
    """The project as seen from the job's file, which may move with it."""
    directory, here = home.state.parent, path.absolute().parent
    inside = here.is_relative_to(directory)
    return os.path.relpath(directory, here) if inside else str(directory)


def text_of(policy: Policy, name: str, where: str, tools: Sequence[Connector], model: Model) -> str:
    """A job's file, with a comment on every line that one may change."""
    import jinja2

    mechanism, gate, why = _means(policy, model)
    features = {"features": "text+length", **model.train}
    is_head = mechanism != RANDOMIZED_LABELS.name  # what is released, so that no step learns one
    options = {**(features if is_head and not model.mechanism else {}), **model.options}
    paths = None if model.input is None else model.input or ["labels.parquet"]
    source = tools[0].source if tools else model.source
    least = CHANCE[LIKELIHOOD if gate == "held-out" else ACCURACY]
    facts = {
        "project": json.dumps(where, ensure_ascii=False),
        "pull": json.dumps([one.name for one in tools]) if tools else None,
        "input": json.dumps(paths[0] if len(paths) == 1 else paths) if paths else None,
        "source": json.dumps(source) if source else None,
        "options": json.dumps(options) if options else None,
        "train": None if is_head else json.dumps(features),
        "at_least": f"{least:.3g}",
    }
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    text = template.render(facts, policy=name, mechanism=mechanism, gate=gate, why=why)
    lines = (line.split("\t") for line in text.splitlines())
    return "".join(f"{one:<30} # {about[0]}\n" if about else f"{one}\n" for one, *about in lines)


def _means(policy: Policy, model: Model) -> tuple[str, str, str]:
    """The mechanism, the last release's or one that a policy pays for, its gate, and why this."""
    pays = set(policy.events)
    usual = (RANDOMIZED_LABELS.name, STATISTIC_RELEASES.name, *policy.events)
    mechanism = model.mechanism or next(name for name in usual if name in pays)
    if STATISTIC_RELEASES.name in pays and policy.held_out and model.comparable:
        return mechanism, "held-out", "one statistic of labelers who are held out, each time"
    if mechanism == RANDOMIZED_LABELS.name:
        return mechanism, "released", "released labels of items that no model learns from"
    return mechanism, "none", "every model; better: probes, a file of public pairs"
