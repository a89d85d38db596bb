"""Best of n: what a reward is worth before anything is trained on it, in an hour.

Of the first n candidates of a prompt the one with the highest reward is taken. That moves away from
the model by at most log n − (n − 1)/n nats (KL divergence; Beirami et al. 2024), which
stands beside what training would have to spend to reach as much.

The reward says of its own choice that it is good. Only another judge can tell: a second release or
a public reward model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.analysis.reward import Content, ReleaseReward, open_feature_reward, reward
from labelguard.errors import LabelguardError
from labelguard.processes import require_one_process
from labelguard.project.opening import Where
from labelguard.release.writer import Release
from labelguard.text import Progress, no_progress
from labelguard_trainer.alignment.contents import (
    check_new_rows_file,
    read_contents,
    text_of,
    to_content_array,
    write_rows,
)

_Z = 1.96


@dataclass(frozen=True)
class BestOfN:
    """The best of the first n candidates, on average over prompts."""

    # how many candidates
    n: int
    # at most so many nats from the model that wrote them
    kl_bound: float
    # the reward of the best
    reward: float
    # its distance from labeled responses; null where none are at hand
    distance: float | None
    # its characters
    length: float
    # prompts on which its reward is above that of the first candidate; equal ones are half
    wins: float


@dataclass(frozen=True)
class JudgeVerdict:
    """The verdict of another judge on the best of all candidates against the first one."""

    # its name
    judge: str
    # prompts on which it prefers the best
    win: int
    # prompts on which both are one to it
    tie: int
    # prompts on which it prefers the first
    loss: int
    # (win + tie / 2) / prompts
    rate: float
    # the lower end of its 95% interval (Wilson's), over prompts like these
    low: float
    # and the upper one
    high: float


@dataclass(frozen=True)
class BestOfResult:
    """The worth of the best of n candidates, by the reward and by another judge."""

    # the release or model that gives the reward
    reward: str
    # how many prompts
    prompts: int
    # for 1, 2, 4, … candidates, and for all
    sizes: tuple[BestOfN, ...]
    # another judge on the candidates
    verdict: JudgeVerdict | None
    # the file of best responses
    path: str | None
    # what else to know
    notes: tuple[str, ...]


def best_of(
    release: Release | str | Path,
    candidates: str | Path,
    *,
    mix: Mapping[str, float] | None = None,
    judge: Release | str | Path | None = None,
    output: str | Path | None = None,
    project: Where = None,
    progress: Progress = no_progress,
) -> BestOfResult:
    """Return how good the best of n candidates are by the reward of a release, for n = 1, 2, 4, …

    `candidates` is a file with prompt and response, several rows a prompt; `release`, `mix` and
    `project` are as for `labelguard.reward`. `judge` is another release or reward model,
    or `reward:ID_OR_PATH`. The best response of each prompt goes to `output`:
    prompt, response, candidate, reward, distance.

    Post-processing: nothing is charged. Raises `LabelguardError` for a file without candidates, and
    for a judge that is the reward itself.
    """
    require_one_process("best of n")
    if output is not None:
        check_new_rows_file(Path(output), "best.parquet")
    source = reward(release, mix=mix, project=project)
    second = None if judge is None else _open_judge(judge, source, project)
    prompts, responses, most, notes = _read_candidates(Path(candidates))
    shape = (-1, most)
    progress("computing rewards", None)
    rewards = source.score(prompts, responses).reshape(shape)
    distances = (
        source.distances(prompts, responses).reshape(shape) if source.has_distances else None
    )
    lengths = np.array([len(text_of(text)) for text in responses], np.float64).reshape(shape)
    best = rewards.argmax(axis=1)  # of equal ones the first
    first = np.arange(len(best)) * most
    at = (first + best).tolist()
    verdict = None
    if second is not None:
        progress("asking the judge", None)
        rows = [*at, *first.tolist()]
        verdict = _judge_first_against_second_half(
            second, [prompts[row] for row in rows], [responses[row] for row in rows]
        )
        if second.learned_from:
            notes.append(
                "the judge shares the reward's mistakes as far as both learned from labels of "
                "the same people"
            )
    if output is not None:
        nothing = pa.nulls(len(at), pa.float64())
        columns = {
            "prompt": to_content_array([prompts[row] for row in at]),
            "response": to_content_array([responses[row] for row in at]),
            "candidate": pa.array(best, pa.int32()),
            "reward": rewards.ravel()[at],
            "distance": nothing if distances is None else distances.ravel()[at],
        }
        write_rows(pa.table(columns), Path(output))
    return BestOfResult(
        source.__name__,
        len(best),
        tuple(
            _measure_best_of(n, rewards, distances, lengths) for n in _iterate_doubling_sizes(most)
        ),
        verdict,
        None if output is None else str(output),
        tuple(notes),
    )


def _read_candidates(file: Path) -> tuple[list[Content], list[Content], int, list[str]]:
    """Return prompts and responses by prompt, how many there are of each prompt, and notes."""
    groups: dict[str, list[tuple[Content, Content]]] = {}
    for row in zip(*read_contents(file, "prompt", "response"), strict=True):
        groups.setdefault(json.dumps(row[0]), []).append(row)
    counts, notes = [*map(len, groups.values())], []
    most = min(counts)
    if most < max(counts):
        notes.append(f"some prompts have more than {most:,} candidates, of which the first count")
    if most == 1:
        notes.append("a prompt has one candidate only: there is nothing to choose from")
    rows = [row for group in groups.values() for row in group[:most]]
    return [row[0] for row in rows], [row[1] for row in rows], most, notes


def _iterate_doubling_sizes(most: int) -> Iterator[int]:
    """Yield 1, 2, 4, …, and the most."""
    yield from (1 << power for power in range((most - 1).bit_length()))
    yield most


Floats = NDArray[np.float64]


def _measure_best_of(n: int, rewards: Floats, distances: Floats | None, lengths: Floats) -> BestOfN:
    best = rewards[:, :n].argmax(axis=1)[:, None]
    highest = np.take_along_axis(rewards, best, axis=1)

    def mean_of_best(values: Floats) -> float:
        return float(np.take_along_axis(values, best, axis=1).mean())

    return BestOfN(
        n,
        math.log(n) - (n - 1) / n,
        float(highest.mean()),
        None if distances is None else mean_of_best(distances),
        mean_of_best(lengths),
        float((0.5 + 0.5 * np.sign(highest - rewards[:, :1])).mean()),
    )


def _open_judge(judge: Release | str | Path, own: ReleaseReward, project: Where) -> ReleaseReward:
    """Return a judge of candidates, unless all that it learned from is the reward's own."""
    if isinstance(judge, str) and judge.startswith("reward:"):
        opened = open_feature_reward(judge)
    else:
        opened = reward(judge, project=project)
    learned = {one.sums for one in opened.learned_from}
    if learned and learned <= {one.sums for one in own.learned_from}:
        raise LabelguardError(
            "the judge learned from the same release as the reward, and has its mistakes: let a "
            "second release judge, or reward:ID_OR_PATH"
        )
    return opened


def _judge_first_against_second_half(
    judge: ReleaseReward, prompts: Sequence[Content], responses: Sequence[Content]
) -> JudgeVerdict:
    """Return the verdict on the first half of the responses against the second one."""
    # At once, so that one text has one score, to the last bit.
    best, other = judge.score(prompts, responses).reshape(2, -1)
    signs = np.sign(best - other)
    rate = float((0.5 + 0.5 * signs).mean())
    # Wilson's; ties scatter less than a win or a loss, so it is wide enough for them.
    n, square = len(signs), _Z * _Z
    middle = (rate + square / (2 * n)) / (1 + square / n)
    half = _Z * math.sqrt(rate * (1 - rate) / n + square / (4 * n * n)) / (1 + square / n)
    win, tie, loss = (int((signs == sign).sum()) for sign in (1, 0, -1))
    return JudgeVerdict(judge.__name__, win, tie, loss, rate, middle - half, middle + half)
