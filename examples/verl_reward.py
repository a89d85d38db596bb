"""The reward of a release as verl's custom reward function: copy it, and edit the three names.

    reward.custom_reward_function.path=THIS_FILE        (older versions of verl: without `reward.`)
    reward.custom_reward_function.name=compute_score    (compute_scores for the manager `batch`)

verl gives a reward function the response alone. Keep the prompt in the column `extra_info` of your
Parquet files, under the name in PROMPT_KEY: a text, or messages of role and content. A response
gets `score`, its reward, and `distance`, which verl logs beside it: about 1 for responses like
those that people labeled, more for others. Nothing is charged.

The release is opened once in each process. It and labelguard have to be on every machine that
computes rewards.
"""

RELEASE = "releases/r0001"  # an absolute path, where verl works in another directory
PROMPT_KEY = "prompt"
MIX = {}  # public rewards beside it, by weight: {"length": -0.1}


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    """Return the reward of one response."""
    [result] = compute_scores([data_source], [solution_str], [ground_truth], [extra_info])
    return result


def compute_scores(data_sources, solution_strs, ground_truths, extra_infos, **_):
    """Return the rewards of a batch."""
    # What cannot be sent to another process, an open release and a lock, is no name of this file.
    from labelguard_trainer.alignment.rewards import score_with_shared_release

    prompts = [(info or {}).get(PROMPT_KEY) for info in extra_infos]
    if None in prompts:
        raise ValueError(f"extra_info holds no {PROMPT_KEY}: keep the prompt there")
    chats_or_texts = [p if isinstance(p, str) else [dict(m) for m in p] for p in prompts]
    return score_with_shared_release(RELEASE, MIX, chats_or_texts, list(solution_strs))
