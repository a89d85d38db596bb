"""The public API as a user calls it: mypy checks this file, nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import labelguard as lg
from labelguard.release.check import Fit, check


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
            columns={"labeler_id": "worker"},
            bad_rows="quarantine",
            exhausted="drop",
            output="out",
            workers=2,
        ),
        lg.privatize(table, mechanism="statistic", releases=12, whitening=0.5, again=True),
        lg.privatize(table, mechanism="props", stages=3, combine="soft", also="further.parquet"),
        lg.privatize(table, mechanism="third-party", **third_party),
    ]


def mistakes(table: Any) -> None:
    """A type checker finds them; without that, each of these comments would be unused."""
    lg.privatize(table, mechanism="rr", epsilom=3, delta=1e-5)  # type: ignore[call-arg]
    lg.privatize(table, mechanism="rr", epsilon="3", delta=1e-5)  # type: ignore[arg-type]
    lg.privatize(table, mechanism="rr", ties="split")  # type: ignore[arg-type]
    lg.privatize(table, mechanism="props", combine="both")  # type: ignore[arg-type]
    check(table, bad_row="stop")  # type: ignore[call-arg]
    check(table, epsilon=3)  # type: ignore[call-arg]


def understood(table: Any) -> lg.Inspection:
    """What an input is understood as."""
    return lg.inspect(table, columns={"prompt": "task"}, question="helpful", format="argilla")


def fits(table: Any) -> Fit:
    """What a release would take."""
    return check(table, mechanism="rr", question="helpful", project="study")
