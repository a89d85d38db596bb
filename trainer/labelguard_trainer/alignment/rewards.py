"""Rewards and distances together, whichever mixture of texts and chats asks for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labelguard.analysis.reward import Content, ReleaseReward


def compute_rewards(
    reward: ReleaseReward, prompts: Sequence[Content], responses: Sequence[Content]
) -> NDArray[np.float64]:
    """Return rewards and, where labeled responses are at hand, distances: shape (1 or 2, n).

    Where any of them is a chat, texts are a user's message and an assistant's. Numbers need not be
    finite. Raises `ValueError` unless there are as many prompts as responses.
    """
    if not all(isinstance(content, str) for content in (*prompts, *responses)):
        prompts = [_as_chat(content, "user") for content in prompts]
        responses = [_as_chat(content, "assistant") for content in responses]
    rows = [reward.score(prompts, responses)]
    if reward.has_distances:
        rows.append(reward.distances(prompts, responses))
    return np.stack(rows)


def _as_chat(content: Content, role: str) -> Content:
    return [{"role": role, "content": content}] if isinstance(content, str) else content
