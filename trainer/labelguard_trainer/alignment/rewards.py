"""Rewards and distances for other trainers: of the responses in a file, or as verl's function.

verl loads the file that is written for it by its path, in several processes, and may send its
functions to others. So what cannot be sent, an open release and a lock, is here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.analysis.reward import Content, ReleaseReward, reward
from labelguard.errors import LabelguardError
from labelguard.storage.files import check_output_file, write_atomically
from labelguard.text import Progress, no_progress
from labelguard_trainer.alignment.contents import (
    check_new_rows_file,
    content_array,
    read_contents,
    write_rows,
)

_ROWS = 2048  # whose rewards are computed at once
_VERL_FILE = Path(__file__).with_name("verl_reward.py.txt")
# verl calls from several threads.
_LOCK = threading.Lock()


def compute_rewards_and_distances(
    source: ReleaseReward, prompts: Sequence[Content], responses: Sequence[Content]
) -> NDArray[np.float64]:
    """Return rewards and, where labeled responses are at hand, distances: shape (1 or 2, n).

    Where any of them is a chat, texts are a user's message and an assistant's. Numbers need not be
    finite. Raises `ValueError` unless there are as many prompts as responses.
    """
    if not all(isinstance(content, str) for content in (*prompts, *responses)):
        prompts = [_as_chat(content, "user") for content in prompts]
        responses = [_as_chat(content, "assistant") for content in responses]
    rows = [source.score(prompts, responses)]
    if source.has_distances:
        rows.append(source.distances(prompts, responses))
    return np.stack(rows)


def _as_chat(content: Content, role: str) -> Content:
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
        "prompt": content_array(prompts),
        "response": content_array(responses),
        "reward": rewards,
        "distance": distances[0] if distances else pa.nulls(len(rewards), pa.float64()),
    }
    write_rows(pa.table(columns), output)
    distance = float(distances[0].mean()) if distances else None
    return ResponseRewards(str(output), len(rewards), float(rewards.mean()), distance)


@dataclass(frozen=True)
class RewardFunctionFile:
    """A file with verl's custom reward function."""

    # the file
    path: str
    # the release, or the model, that it opens
    source: str
    # the name in the column extra_info that holds the prompt
    prompt_key: str


def write_reward_function(
    path: Path, source: Path, *, mix: Mapping[str, float], prompt_key: str = "prompt"
) -> RewardFunctionFile:
    """Write verl's `compute_score` for a release's directory; `mix` is that of `lg.reward`.

    Raises what `lg.reward` raises, before anything is written.
    """
    check_output_file(path, "reward.py")
    reward(source, mix=mix)
    # As ASCII, whatever bytes a path has.
    settings = {"release": str(source.absolute()), "prompt_key": prompt_key, "mix": mix}
    values = {name: ascii(value) for name, value in settings.items()}
    write_atomically(path, _VERL_FILE.read_text(encoding="utf-8").format(**values).encode())
    return RewardFunctionFile(str(path), str(source), prompt_key)


def score_for_verl(
    release: str,
    mix: Mapping[str, float],
    prompt_key: str,
    responses: Sequence[str],
    extra_infos: Sequence[Mapping[str, Any] | None],
) -> list[dict[str, float]]:
    """Return `score` and, where labeled responses are at hand, `distance` of each response.

    Raises `LabelguardError` where `extra_info` holds no prompt, or a reward is no finite number.
    """
    prompts = [_prompt_of(info, prompt_key) for info in extra_infos]
    with _LOCK:
        rewards = compute_rewards_and_distances(
            _open_reward(release, *mix.items()), prompts, list(responses)
        )
    if not np.isfinite(rewards).all():
        raise LabelguardError(f"a reward of {release} is no finite number")
    # There are two rows, or one.
    return [dict(zip(("score", "distance"), row, strict=False)) for row in rewards.T.tolist()]


@cache
def _open_reward(release: str, *mix: tuple[str, float]) -> ReleaseReward:
    return reward(Path(release), mix=dict(mix))


def _prompt_of(info: Mapping[str, Any] | None, key: str) -> Content:
    prompt = (info or {}).get(key)
    if prompt is None:
        raise LabelguardError(
            f"extra_info holds no {key}: keep the prompt there, or write the function again with "
            "--prompt-key NAME"
        )
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
