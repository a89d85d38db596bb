"""Projects that hold labelers out, and who they are: what several tests share."""

import shutil
from dataclasses import replace
from typing import Any

import polars as pl
from support.copies import copy_project
from support.lives import put_into_force

from labelguard.project.opening import OpenProject

SHARE = 0.5
SHAPE: dict[str, Any] = {
    "features": "columns:score,length",
    "public_columns": ["score", "length"],
    "components": 2,
    "whitening": 0.5,
    "floor": 1e-3,
    "clip_quantile": 0.5,
    "ridge": 1.0,
}
TEACHER: dict[str, Any] = {"mechanism": "statistic", **SHAPE}
EVALUATION: dict[str, Any] = {"mechanism": "evaluation"}


def hold_out(project, *allow, name="held", share=SHARE, **options):
    """A policy that holds a share of labelers out, in force."""
    declared = {"public_columns": SHAPE["public_columns"]}
    return put_into_force(project, name, *allow, held_out=share, **declared | options)


def of_part(project, raw, part, share=SHARE):
    """The rows of one part's labelers."""
    opened = OpenProject.open(project)
    ids = raw["labeler_id"].unique().cast(pl.String).to_list()
    keys = opened.keys.hash_labelers(opened.project.namespace, ids)
    own = [
        i for i, yes in zip(ids, opened.keys.splits(share).is_in(keys, part), strict=True) if yes
    ]
    return raw.filter(pl.col("labeler_id").cast(pl.String).is_in(own))


def copy_release(made, release, project):
    """Give a project the state of another one, which is made once; return its release there."""
    shutil.rmtree(project.state)
    copy_project(made.state, project.state)
    return replace(release, path=project.state / release.path.relative_to(made.state))
