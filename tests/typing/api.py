"""The public API as a user calls it: mypy checks this file, nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import polars as pl
import pyarrow as pa

import labelguard as lg
from labelguard.accounting.account import LabelNoise, RunNoise, StatisticNoise
from labelguard.planner.advice import PlanResult
from labelguard.project.policy_facts import Activation, PolicyDetails, PolicyLine
from labelguard.report.inspection import Inspection


def releases(table: Any, third_party: dict[str, Any]) -> list[lg.Release]:
    """Every group of options, with a mechanism's own, and those of another package's mechanism."""
    return [
        lg.privatize("labels.parquet", mechanism="rr", epsilon=3, delta=1e-5),
        lg.privatize(
            [Path("a.csv"), table],
            project="study",
            namespace="survey",
            epsilon=3.0,
            delta=1e-5,
            ties="coin",
            unit="labeler",
            max_labels_per_labeler=16,
            block=1,
            columns={"labeler_id": "worker"},
            bad_rows="quarantine",
            exhausted="drop",
            output="out",
            workers=2,
        ),
        lg.privatize([{"prompt": "p", "chosen": "a", "rejected": "b", "labeler_id": 7}]),
        lg.privatize(table, features="length", stages=3, again=True),
        lg.privatize(table, mechanism="statistic", uses=12, whitening=0.5, again=True),
        lg.privatize(table, mechanism="props", stages=3, combine="soft", also="further.parquet"),
        lg.privatize(table, mechanism="props", learner="dpo", train_config=Path("train.yaml")),
        lg.privatize(table, mechanism="evaluation", head=Path("release")),
        lg.privatize(table, mechanism="uls", steps=200, weighting="root"),
        lg.privatize(table, mechanism="els", records=4, sampling_probability=0.1),
        lg.privatize(table, mechanism="els-group", records=4),
        lg.privatize(table, mechanism="aup", concentration=2.0, accept_unproven=True),
        lg.privatize(table, **third_party),
    ]


def mistakes(table: Any, name: str) -> None:
    """A type checker finds them; without that, each of these comments would be unused."""
    lg.privatize(table, mechanism="rr", epsilom=3)  # type: ignore[call-arg]
    lg.privatize(table, epsilom=3)  # type: ignore[call-arg]
    lg.privatize(table, mechanism="rr", epsilon="3")  # type: ignore[arg-type]
    lg.privatize(table, mechanism="rr", ties="split")  # type: ignore[arg-type]
    lg.privatize(table, mechanism="props", combine="both")  # type: ignore[arg-type]
    lg.privatize(table, mechanism="randomised")  # type: ignore[arg-type]
    lg.privatize(table, mechanism=name)  # type: ignore[arg-type]
    lg.inspect(table, colums={"prompt": "task"})  # type: ignore[call-arg]
    lg.plan(table, epsilon=3)  # type: ignore[call-arg]
    lg.plan(table, unit="team")  # type: ignore[arg-type]
    lg.simulate(labeler=20)  # type: ignore[call-arg]
    lg.init("study", max_epsilon="10")  # type: ignore[arg-type]
    lg.load("release", "numpy")  # type: ignore[call-overload]
    lg.policies.new("weekly", epsilon=3, delta=1e-5)  # type: ignore[call-arg]
    lg.account.run("uls", 3, 1e-5, step=100)  # type: ignore[call-arg]
    lg.Inspection  # type: ignore[attr-defined]  # noqa: B018


def inspect_and_plan(table: Any) -> None:
    """What an input is understood as, and may give."""
    assert_type(lg.inspect(table, columns={"prompt": "task"}, question="helpful"), Inspection)
    assert_type(lg.plan(table, [1, 3], features="length", unit="item", uses=1), PlanResult)


def load_release(release: lg.Release) -> None:
    """A release as whichever table it is asked for."""
    assert_type(lg.load(release), pl.DataFrame)
    assert_type(lg.load(str(release.path), "polars"), pl.DataFrame)
    arrow: pa.Table = lg.load(release.path, "arrow")
    frames: list[Any] = [lg.load(release, "pandas"), lg.load(release, "datasets"), arrow]
    assert_type(lg.score(release, frames), pl.DataFrame)


def projects() -> None:
    """Projects, their policies, and what mechanisms cost."""
    study: lg.Project = lg.init("study", max_epsilon=10, max_delta=1e-4)
    assert_type(lg.find(Path("study")), lg.Project)
    made = lg.policies.new(
        "weekly", epsilon=3, delta=1e-5, allow=["rr:uses=8,block=1"], project=study
    )
    assert_type(made, PolicyDetails)
    policy: lg.Policy = made
    assert_type(lg.policies.preview("weekly", study), Activation)
    assert_type(lg.policies.activate("weekly", "study"), Activation)
    assert_type(lg.policies.show(project="study"), PolicyDetails)
    assert_type(lg.policies.listing(study), list[PolicyLine])
    assert_type(lg.account.rr(policy.epsilon, 1e-5, 50), LabelNoise)
    assert_type(lg.account.statistic(3, 1e-5, releases=12), StatisticNoise)
    assert_type(lg.account.run("uls", 3, 1e-5, sampling_probability=0.1, runs=2), RunNoise)
    with lg.waiting():
        lg.policies.close("weekly", study)


def read_error() -> str:
    """An error that labelguard raises."""
    try:
        lg.simulate(labelers=20)
    except lg.errors.BudgetExceeded as error:
        return f"{error}: {error.left}"
    return ""
