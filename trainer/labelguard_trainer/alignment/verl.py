"""A release as verl's custom reward function: a file that is written, and what it calls.

verl loads such a file by its path, in several processes, and may send its functions to others. So
what cannot be sent, an open release and a lock, is here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from labelguard.analysis.reward import Content, ReleaseReward, reward
from labelguard.errors import LabelguardError
from labelguard.storage.files import check_file, write_atomically
from labelguard_trainer.alignment.rewards import compute_rewards

_TEMPLATE = Path(__file__).with_name("verl_template.py")
# verl calls from several threads.
_LOCK = threading.Lock()


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
    check_file(path, "reward.py")
    reward(source, mix=mix)
    settings = {"RELEASE": str(source.absolute()), "PROMPT_KEY": prompt_key, "MIX": mix}
    text = _TEMPLATE.read_text(encoding="utf-8")
    head, _, body = text.partition("RELEASE: ")
    # As ASCII, whatever bytes a path has.
    lines = "".join(f"{name} = {value!a}\n" for name, value in settings.items())
    write_atomically(path, f"{head}{lines}\n\n{body[body.index('def ') :]}".encode())
    return RewardFunctionFile(str(path), str(source), prompt_key)


def compute(
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
        rewards = compute_rewards(_open(release, *mix.items()), prompts, list(responses))
    if not np.isfinite(rewards).all():
        raise LabelguardError(f"a reward of {release} is no finite number")
    # There are two rows, or one.
    return [dict(zip(("score", "distance"), row, strict=False)) for row in rewards.T.tolist()]


@cache
def _open(release: str, *mix: tuple[str, float]) -> ReleaseReward:
    return reward(Path(release), mix=dict(mix))


def _prompt_of(info: Mapping[str, Any] | None, key: str) -> Content:
    if info is None or info.get(key) is None:
        raise LabelguardError(
            f"extra_info holds no {key}: keep the prompt there, or write the function again with "
            "--prompt-key NAME"
        )
    prompt = info[key]
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
