"""Small projects with a job: a few labelers, a head of one number, everything in a moment."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from support.codings import NUMBERS
from support.lives import put_into_force
from support.preferences import opinions, pairs, public

import labelguard as lg
from labelguard.project import attempts
from labelguard.report import overview

SETTINGS: Mapping[str, Any] = {
    "project": ".",
    "input": "labels/*.parquet",
    "release": {"mechanism": "rr", "min_new_labels": 10, "options": {"workers": 1}},
    "train": {"options": {"features": "length", "components": 1, "holdout": 0.3}},
    "gate": {"by": "none"},
}


@dataclass(frozen=True)
class Desk:
    """A directory with a project, a job and labels that come in batches."""

    path: Path

    @property
    def job(self):
        return self.path / "job.yaml"

    @property
    def models(self):
        return self.path / "models"

    @property
    def state(self):
        return self.path / ".labelguard" / "jobs" / "job"

    def asks(self, **settings):
        """Write the job; members that are mappings are added to those that there are."""
        found = dict(SETTINGS)
        for name, value in settings.items():
            both = isinstance(value, dict) and name in found
            found[name] = {**found[name], **value} if both else value
        release = found["release"]
        options = {"label_values": NUMBERS} | (release.get("options") or {})
        found["release"] = {**release, "options": options}
        self.job.write_text(yaml.safe_dump({k: v for k, v in found.items() if v is not None}))

    def label(self, batch, seed=1):
        """Thirty more labels, of the same five labelers."""
        pq.write_table(labels(batch, seed), self.path / "labels" / f"{batch}.parquet")

    def history(self):
        return attempts.list_job_runs(lg.find(self.path))

    def registry(self):
        found: list[dict[str, Any]] = json.loads((self.models / "registry.json").read_text())[
            "models"
        ]
        return found

    def committed(self):
        return [one.id for one in overview.list_releases(self.path) if one.state == "committed"]

    def charged(self):
        """Uses of all labelers."""
        return sum(one.used for one in overview.read_budget(self.path).allowances)


def labels(batch, seed=1):
    asked = public(labelers=5, per_labeler=6, items=9, seed=batch)
    table = pairs(asked, opinions(len(asked), seed + batch))
    texts = [f"{text}, batch {batch}" for text in table["prompt"].to_pylist()]
    return table.set_column(0, "prompt", pa.array(texts))


def desk(path, allow=("rr:uses=64,block=1",), held_out=0.0, **settings):
    """A project under a policy, with a job and a first batch of labels."""
    made = Desk(path)
    (path / "labels").mkdir(parents=True)
    lg.init(path)
    put_into_force(path, "lasting", *allow, epsilon=3.0, held_out=held_out)
    made.asks(**settings)
    made.label(1)
    return made
