"""Rewards and distances of the responses in a file, for other trainers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.analysis.reward import Content, ReleaseReward, reward
from labelguard.errors import LabelguardError
from labelguard.text import Progress, no_progress
from labelguard_trainer.alignment.contents import (
    check_new_rows_file,
    read_contents,
    to_content_array,
    write_rows,
)

_ROWS = 2048  # whose rewards are computed at once
# Trainers call from several threads.
_LOCK = threading.Lock()


def compute_rewards_and_distances(
    source: ReleaseReward, prompts: Sequence[Content], responses: Sequence[Content]
) -> NDArray[np.float64]:
    """Return rewards and, where labeled responses are at hand, distances: shape (1 or 2, n).

    Where any of them is a chat, texts are a user's message and an assistant's. Numbers need not be
    finite. Raises `ValueError` unless there are as many prompts as responses.
    """
    if not all(isinstance(content, str) for content in (*prompts, *responses)):
        prompts = [_to_chat(content, "user") for content in prompts]
        responses = [_to_chat(content, "assistant") for content in responses]
    rows = [source.score(prompts, responses)]
    if source.has_distances:
        rows.append(source.distances(prompts, responses))
    return np.stack(rows)


def _to_chat(content: Content, role: str) -> Content:
    return [{"role": role, "content": content}] if isinstance(content, str) else content


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
    source: ReleaseReward, file: Path, output: Path, progress: Progress = no_progress
) -> ResponseRewards:
    """Write prompt, response, reward and distance of each row of a file to a new file.

    Raises `LabelguardError` for a file without the columns prompt and response, with texts or
    chats, in every row, and where a reward is no finite number.
    """
    check_new_rows_file(output, "rewards.parquet")
    prompts, responses = read_contents(file, "prompt", "response")
    parts = []
    for start in range(0, len(prompts), _ROWS):
        progress("computing rewards", start / len(prompts))
        rows = slice(start, start + _ROWS)
        parts.append(compute_rewards_and_distances(source, prompts[rows], responses[rows]))
    numbers = np.concatenate(parts, axis=1)
    wrong = ~np.isfinite(numbers).all(axis=0)
    if wrong.any():
        raise LabelguardError(f"{file}: row {wrong.argmax() + 1}: its reward is no finite number")
    rewards, *distances = numbers
    columns = {
        "prompt": to_content_array(prompts),
        "response": to_content_array(responses),
        "reward": rewards,
        "distance": distances[0] if distances else pa.nulls(len(rewards), pa.float64()),
    }
    write_rows(pa.table(columns), output)
    distance = float(distances[0].mean()) if distances else None
    return ResponseRewards(str(output), len(rewards), float(rewards.mean()), distance)


def score_with_shared_release(
    release: str, mix: Mapping[str, float], prompts: Sequence[Content], responses: Sequence[str]
) -> list[dict[str, float]]:
    """Return `score` and, where labeled responses are at hand, `distance` of each response.

    The release is opened once in a process, for all its threads: see `examples/verl_reward.py`.
    Raises `LabelguardError` where a reward is no finite number.
    """
    with _LOCK:
        rewards = compute_rewards_and_distances(
            _open_once(release, *mix.items()), prompts, responses
        )
    if not np.isfinite(rewards).all():
        raise LabelguardError(f"a reward of {release} is no finite number")
    # There are two rows, or one.
    return [dict(zip(("score", "distance"), row, strict=False)) for row in rewards.T.tolist()]


@cache
def _open_once(release: str, *mix: tuple[str, float]) -> ReleaseReward:
    return reward(Path(release), mix=dict(mix))
