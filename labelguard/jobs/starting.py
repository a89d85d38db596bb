"""A first job.yaml, from what a project has: its policy, its connectors; nothing is asked."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labelguard.errors import LabelguardError
from labelguard.ingest.connector import Settings as Connector
from labelguard.policy.events import RANDOMIZED_LABELS, STATISTIC_RELEASES
from labelguard.policy.policy import USUAL_EPSILON, Policy, usual_delta
from labelguard.project import ingestion, policies
from labelguard.project.opening import Where, located
from labelguard.project.project import Project
from labelguard.report import overview

POLICY = "retraining"
_LABELS, _RELEASES, _HELD_OUT = 64, 52, 0.1
"""What the draft pays for: labels of a labeler, and a statistic every week of a year."""


@dataclass(frozen=True)
class Written:
    """A job that was written."""

    path: str
    """its file"""
    policy: str
    """the policy it was written for"""
    drafted: bool
    """whether that was made now, and waits for somebody to put it into force"""
    next: Sequence[str]
    """commands to go on with"""


def start(path: Path, project: Where = None) -> Written:
    """Write a job for the policy in force or, where there is none, for a draft that is made.

    Raises `LabelguardError` if the file exists; it stays as it is.
    """
    if path.exists() or path.is_symlink():
        raise LabelguardError(f"{path} exists; remove it, or name another file")
    home = located(project)
    policy, name, drafted = _policy(home)
    text = text_of(policy, name, _way(home, path), _connectors(home))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise LabelguardError(f"cannot write {path}: {error.strerror}") from None
    shown = shlex.quote(str(path))
    force = [f"labelguard policy show {name}", f"labelguard policy activate {name}"]
    steps = (*(force if drafted else ()), f"labelguard retrain {shown} --dry-run")
    return Written(str(path), name, drafted, steps)


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


def _connectors(home: Project) -> list[Connector]:
    """Those of one source: a release is of one."""
    found = list(ingestion.settings(home).values())
    return [one for one in found if one.source == found[0].source]


def _way(home: Project, path: Path) -> str:
    """The project as seen from the job's file, which may move with it."""
    directory, here = home.state.parent, path.absolute().parent
    inside = here.is_relative_to(directory)
    return os.path.relpath(directory, here) if inside else str(directory)


def text_of(policy: Policy, name: str, where: str, tools: Sequence[Connector]) -> str:
    """A job's file, with a comment on every line that one may change."""
    mechanism, gate, why = _means(policy)
    lines = [("input: labels.parquet", "files or globs to release; of a tool: pull: [connector]")]
    if tools:
        names = json.dumps([one.name for one in tools], ensure_ascii=False)
        lines = [(f"pull: {names}", "connectors that are pulled first")]
        lines.append((f"source: {json.dumps(tools[0].source)}", "whose labelers these are"))
    features = "options: {features: text+length}", "what a head learns from"
    heads = mechanism != RANDOMIZED_LABELS.name
    lines += [
        ("release:", ""),
        (f"  mechanism: {mechanism}", "how labels are released; the policy pays for it"),
        ("  min_new_labels: 100", "fewer wait for the next run"),
        ("  exhausted: drop", "labels beyond their labeler's allowance are left out"),
        *([(f"  {features[0]}", features[1])] if heads else []),
        ("train:", ""),
        ("  step: head", "or reward, dpo: models that need a GPU"),
        *([] if heads else [(f"  {features[0]}", features[1])]),
        ("gate:", ""),
        (f"  by: {gate}", why),
        ("  margin: 0.0", "how much worse than the model in use it may be"),
        ("  confidence: 0.5", "how sure that must be; 0.5 takes the estimate as it is"),
        ("promote:", ""),
        ("  directory: models", "0001, 0002, … and the link `current`"),
        ("  keep: 5", "so many newest stay, and the one in use"),
        ("# notify:", "a signed webhook; its secret is in LABELGUARD_NOTIFY_SECRET"),
        ("#   url: https://example.org/hooks/labelguard", ""),
        ("#   budget_below: 0.1", "told once when less of an allowance is left"),
    ]
    head = f"# A job of `labelguard retrain`, for policy {name}: docs/retraining.md.\n"
    where = f"project: {json.dumps(where, ensure_ascii=False)}\n"
    rest = [f"{text:<30} # {said}".rstrip() if said else text for text, said in lines]
    return head + where + "\n".join(rest) + "\n"


def _means(policy: Policy) -> tuple[str, str, str]:
    """The mechanism and the gate that a policy pays for, and why this gate."""
    pays = set(policy.events)
    usual = (RANDOMIZED_LABELS.name, STATISTIC_RELEASES.name, *policy.events)
    mechanism = next(name for name in usual if name in pays)
    if STATISTIC_RELEASES.name in pays and policy.held_out:
        return mechanism, "held-out", "one statistic of labelers who are held out, each time"
    if mechanism == RANDOMIZED_LABELS.name:
        return mechanism, "released", "released labels of items that no model learns from"
    return mechanism, "none", "every model; better: probes, a file of public pairs"
