"""`labelguard reward score`: rewards of the responses in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from labelguard.analysis.reward import ReleaseReward
from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.storage.files import check_new_file, staged_beside
from labelguard.text import Progress, no_progress
from labelguard_trainer.alignment.rewards import compute_rewards

_ROWS = 2048
_COLUMNS = ("prompt", "response")


@dataclass(frozen=True)
class ResponseRewards:
    """Responses that were given rewards."""

    # the file
    path: str
    # how many
    responses: int
    # their mean reward
    mean_reward: float
    # their mean distance from labeled responses; null where these are not at hand
    mean_distance: float | None


def score_file(
    reward: ReleaseReward, source: Path, path: Path, progress: Progress = no_progress
) -> ResponseRewards:
    """Write prompt, response, reward and distance of each row of a file to a new Parquet file.

    Raises `InvalidLabels` for a file without the columns prompt and response, with texts or chats,
    in every row, and `LabelguardError` where a reward is no finite number.
    """
    check_new_file(path, "rewards.parquet")
    frame = _read(source)
    columns = np.full((2, frame.height), np.nan)
    for start in range(0, frame.height, _ROWS):
        progress("computing rewards", start / frame.height)
        texts = [frame[name].slice(start, _ROWS).to_list() for name in _COLUMNS]
        rows = slice(start, start + len(texts[0]))
        columns[: 1 + reward.has_distances, rows] = compute_rewards(reward, *texts)
    wrong = ~np.isfinite(columns[: 1 + reward.has_distances]).all(axis=0)
    if wrong.any():
        raise LabelguardError(f"{source}: row {wrong.argmax() + 1}: its reward is no finite number")
    numbers = pl.DataFrame(columns.T, schema=["reward", "distance"]).fill_nan(None)
    with staged_beside(path) as directory:
        frame.hstack(numbers).write_parquet(directory / "rewards.parquet")
        (directory / "rewards.parquet").replace(path)
    distance = columns[1].mean() if reward.has_distances else None
    return ResponseRewards(str(path), frame.height, float(columns[0].mean()), distance)


def _read(source: Path) -> pl.DataFrame:
    """Return prompts and responses."""
    try:
        if source.suffix.lower() == ".parquet":
            frame = pl.read_parquet(source)
        else:
            frame = pl.read_ndjson(source, infer_schema_length=None)
    except pl.exceptions.PolarsError:  # its message may hold a text
        raise InvalidLabels(f"{source} is neither Parquet nor JSON lines") from None
    for name in _COLUMNS:
        if name not in frame.columns:
            raise InvalidLabels(f"{source} has no column {name}; expected {' and '.join(_COLUMNS)}")
        try:
            frame = frame.with_columns(_content(frame[name]))
        except pl.exceptions.PolarsError:
            raise InvalidLabels(
                f"{source}: column {name} must hold texts, or lists of role and content"
            ) from None
        if (nulls := frame[name].is_null()).any():
            raise InvalidLabels(f"{source}: row {(nulls.arg_max() or 0) + 1} has no {name}")
    if not frame.height:
        raise InvalidLabels(f"{source} has no rows")
    return frame.select(_COLUMNS)


def _content(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String:
        return column
    members = [pl.element().struct.field(name).cast(pl.String) for name in ("role", "content")]
    return column.list.eval(pl.struct(members))
