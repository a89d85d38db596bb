"""The reward of a labelguard release, for verl; written by `labelguard reward verl`.

    reward.custom_reward_function.path=THIS_FILE        (older versions of verl: without `reward.`)
    reward.custom_reward_function.name=compute_score    (compute_scores for the manager `batch`)

verl gives a reward function the response alone. Keep the prompt in the column `extra_info` of your
Parquet files, under the name in PROMPT_KEY: a text, or messages of role and content. A response
gets `score`, its reward, and `distance`, which verl logs beside it: about 1 for responses like
those that people labeled, more for others. Nothing is charged.

The release is opened once in each process. It and labelguard have to be on every machine that
computes rewards.
"""

from __future__ import annotations

from typing import Any

RELEASE: str = ""
PROMPT_KEY: str = "prompt"
MIX: dict[str, float] = {}


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    **_: Any,
) -> dict[str, float]:
    """Return the reward of one response."""
    [result] = compute_scores([data_source], [solution_str], [ground_truth], [extra_info])
    return result


def compute_scores(
    data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any, **_: Any
) -> list[dict[str, float]]:
    """Return the rewards of a batch."""
    from labelguard_trainer.alignment.verl import compute

    return compute(RELEASE, MIX, PROMPT_KEY, solution_strs, extra_infos)
