"""A first job.yaml, made from a project's policy, its last release and its connectors."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labelguard.answers.connector import Settings as Connector
from labelguard.answers.connector import read_all_settings
from labelguard.budget.events import RANDOMIZED_LABELS, STATISTIC_RELEASES
from labelguard.budget.policy import USUAL_EPSILON, Policy, choose_usual_delta
from labelguard.errors import LabelguardError
from labelguard.jobs import gates
from labelguard.jobs.gates import ACCURACY, CHANCE, LIKELIHOOD
from labelguard.jobs.settings import resolve_paths, resolve_pattern
from labelguard.project import policies
from labelguard.project.opening import OpenProject, Where, locate_project
from labelguard.project.project import Project
from labelguard.release.evaluation import load_coordinates
from labelguard.report import overview
from labelguard.text import read_template

POLICY = "retraining"
_TEMPLATE = Path(__file__).with_name("job.yaml.j2")
# The draft pays for labels of a labeler, and a statistic every week of a year.
_LABELS, _RELEASES, _HELD_OUT = 64, 52, 0.1


@dataclass(frozen=True)
class JobFile:
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
class LastRelease:
    """Settings of the project's last release that a job takes over.

    `input` is None for answers that were ingested, empty for data in memory. `train` are options of
    the step, where an evaluation of the project needs its coordinates; `comparable`: the job's
    heads are in them.
    """

    mechanism: str | None = None
    input: Sequence[str] | None = ()
    source: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    comparable: bool = True


def write_job(path: Path, project: Where = None) -> JobFile:
    """Write a job for the policy in force or, where there is none, for a draft that is made.

    Raises `LabelguardError` if the file exists; it stays as it is.
    """
    if path.exists() or path.is_symlink():
        raise LabelguardError(f"{path} exists; remove it, or name another file")
    home, here = locate_project(project), path.absolute().parent
    policy, name, drafted = _choose_policy(home)
    last = _find_last_release(home, here, policy)
    directory = home.state.parent
    # The project as seen from the job's file, which may move with it.
    is_inside = here.is_relative_to(directory)
    place = os.path.relpath(directory, here) if is_inside else str(directory)
    text = render_job(policy, name, place, _choose_connectors(home, last), last)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise LabelguardError(f"cannot write {path}: {error.strerror}") from None
    activate = [f"labelguard policy show {name}", f"labelguard policy activate {name}"]
    look = f"labelguard retrain {shlex.quote(str(path))} --dry-run"
    return JobFile(str(path), name, drafted, (*(activate if drafted else ()), look))


def _choose_policy(home: Project) -> tuple[Policy, str, bool]:
    """Return the policy in force, or a draft if there is none; its name; True if it is new."""
    policy = overview.read_budget(home).policy
    if policy:
        return policy, policy.name, False
    if any(line.name == POLICY for line in policies.listing(home)):
        return policies.show(POLICY, home), POLICY, True
    draft = policies.new(
        POLICY,
        epsilon=USUAL_EPSILON,
        delta=choose_usual_delta(1),
        allow=[f"rr:uses={_LABELS},block=1", f"statistic:releases={_RELEASES}"],
        held_out=_HELD_OUT,
        project=home,
    )
    return draft, POLICY, True


def _find_last_release(home: Project, base: Path, policy: Policy) -> LastRelease:
    """Return the last release that trains, of a mechanism that the policy pays for, if any.

    Paths are relative to `base` if that is the project's directory, else absolute.
    """
    records = [
        record
        for record in OpenProject.open(home).ledger.releases.list_committed()
        if record.part == "training" and record.event in policy.events
    ]
    if not records:
        return LastRelease()
    settings, directory = records[-1].settings, home.state.parent
    request = settings.get("request") or {"input": (), "options": {}}
    options = dict(request["options"])
    if features := settings["choices"].get("features"):
        options["features"] = features
    paths = request.get("input")
    if base.resolve() != directory:
        options = resolve_paths(directory, options)
        paths = paths and [resolve_pattern(path, directory) for path in paths]
    source = request.get("namespace")
    if source == home.namespace and paths is not None:
        source = None
    mechanism, train, comparable = settings["mechanism"], {}, True
    if evaluation := gates.find_gate_coordinates_directory(home, None):
        axes = load_coordinates(evaluation)
        train = {"features": axes.features, "components": axes.shape.components}
        try:
            gates.check_same_coordinates(mechanism, home, None)
        except LabelguardError:
            comparable = False
    return LastRelease(mechanism, paths, source, options, train, comparable)


def _choose_connectors(home: Project, last: LastRelease) -> list[Connector]:
    """Return the connectors of one source, as a release is of one; none if it was of files."""
    connectors = [] if last.input else list(read_all_settings(home.connectors).values())
    source = last.source or (connectors[0].source if connectors else None)
    return [connector for connector in connectors if connector.source == source]


def render_job(
    policy: Policy, name: str, project: str, connectors: Sequence[Connector], last: LastRelease
) -> str:
    """Return the text of job.yaml, with a comment on every line that one may change."""
    mechanism, gate, why = choose_mechanism_and_gate(policy, last)
    features = {"features": "text+length", **last.train}
    is_head = mechanism != RANDOMIZED_LABELS.name  # what is released, so that no step learns one
    options = {**(features if is_head and not last.mechanism else {}), **last.options}
    paths = None if last.input is None else last.input or ["labels.parquet"]
    facts = {
        "project": project,
        "pull": [connector.name for connector in connectors] or None,
        "input": paths[0] if paths and len(paths) == 1 else paths,
        "source": connectors[0].source if connectors else last.source,
        "options": options or None,
        "train": None if is_head else features,
    }
    lines = {key: value and json.dumps(value, ensure_ascii=False) for key, value in facts.items()}
    least = CHANCE[LIKELIHOOD if gate == "held-out" else ACCURACY]
    lines |= {"policy": name, "mechanism": mechanism, "gate": gate, "why": why}
    text = read_template(_TEMPLATE).render(lines, at_least=f"{least:.3g}")
    rows = (line.split("\t") for line in text.splitlines())
    return "".join(
        f"{row:<30} # {comment[0]}\n" if comment else f"{row}\n" for row, *comment in rows
    )


def choose_mechanism_and_gate(policy: Policy, last: LastRelease) -> tuple[str, str, str]:
    """Return the last release's mechanism or one that a policy pays for, its gate, and why."""
    events = set(policy.events)
    usual = (RANDOMIZED_LABELS.name, STATISTIC_RELEASES.name, *policy.events)
    mechanism = last.mechanism or next(name for name in usual if name in events)
    if STATISTIC_RELEASES.name in events and policy.held_out and last.comparable:
        return mechanism, "held-out", "one statistic of labelers who are held out, each time"
    if mechanism == RANDOMIZED_LABELS.name:
        return mechanism, "released", "released labels of items that no model learns from"
    return mechanism, "none", "every model; better: probes, a file of public pairs"
