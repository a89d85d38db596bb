"""Rewards of single responses by a release: what reinforcement learning asks for.

    trl.RLOOTrainer(model, reward_funcs=lg.reward("r0001"), …)

A head scores pairs by x·θ with x = φ(prompt, first) − φ(prompt, second). The reward of one response
is its margin over an empty one, so that the difference of two rewards is the margin of the pair; of
a reward model it is the model's own number. Both are functions of a release and of public texts:
nothing is charged (post-processing).

A reward is right about responses like those that people labeled. Training moves away from them:
`distances` tells how far.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.learning.columns import parse_feature_columns
from labelguard.learning.features import PairFeatures, open_provider
from labelguard.learning.providers import open_part
from labelguard.project.opening import Where
from labelguard.release.head import FILE, Head
from labelguard.release.item_keys import PAIRS
from labelguard.release.model_card import (
    LearnedRelease,
    find_learned_releases,
    list_learned_releases,
)
from labelguard.release.pairs_file import scan_pairs
from labelguard.release.writer import (
    Release,
    read_card,
    resolve_release_directory,
    verify_release_directory,
)
from labelguard.storage.buckets import find_rows_path
from labelguard.storage.files import SUMS, hash_file
from labelguard.text import no_progress, pluralize

Floats: TypeAlias = NDArray[np.float64]
# Public: (prompts, responses) → one number each.
Scorer: TypeAlias = Callable[[pa.Table], Floats]
# A text, or messages of role and content.
Content: TypeAlias = str | list[dict[str, Any]]

_PLAIN = "length+style+text"  # what distances are measured in where there is no head
_ROWS = 1000  # of a release, whose responses distances are measured from
_REMEMBERED = 1 << 16


def reward(
    source: Release | str | Path,
    *,
    mix: Mapping[str, float] | None = None,
    reference: Release | str | Path | None = None,
    non_private: bool = False,
    project: Where = None,
) -> ReleaseReward:
    """Return the reward of a release, or of a model that was trained on one.

    `source` is a release with a head (`statistic`, `props`) or a reward model (`props --learner
    reward`), its id in `project`, or a directory from `labelguard train reward`. `mix` adds public
    rewards by weight: `{"reward:ID_OR_PATH": 0.5, "length": -0.1}`, each a specification of
    features with one number for each response; a directory there may be of other releases, which
    are then named, and not of raw labels. `reference` is a release whose responses distances
    are measured from; the source itself, if it is one.

    Raises `LabelguardError` for what gives no number for a text alone: a release of labels (train a
    model on it), a head on columns of its pairs, a model of raw labels unless `non_private`.

    Example:
        >>> lg.reward(release).score(["Which is larger?"], ["The sun."]).shape
        (1,)
    """
    directory = resolve_release_directory(source, project)
    is_release = (directory / "card.json").is_file()
    if not is_release and not (directory / "config.json").is_file():
        raise LabelguardError(f"{directory} is neither a release nor a reward model")
    learned: tuple[LearnedRelease, ...]
    if is_release:
        verify_release_directory(directory)
        learned = list_learned_releases(read_card(directory), hash_file(directory / SUMS))
        scorer, provider = _make_release_scorer(directory)
    else:
        learned = find_learned_releases(str(directory), private=not non_private)
        scorer, provider = _make_feature_scorer(f"reward:{directory}"), None
    scorers = [(scorer, 1.0)]
    for spec, weight in (mix or {}).items():
        if not np.isfinite(weight):
            raise LabelguardError(f"the weight of {spec} must be a number, found {weight}")
        if model := spec.partition(":")[2].partition(",")[0]:
            learned += find_learned_releases(model, private=not non_private)
        scorers.append((_make_feature_scorer(spec), float(weight)))
    near = _LabeledResponses(directory, provider) if is_release else None
    if reference is not None:
        near = _LabeledResponses(verify_release_directory(reference, project), None)
    distinct = tuple({one.sums: one for one in learned}.values())
    return ReleaseReward(directory.name, scorers, distinct, near)


def _make_release_scorer(directory: Path) -> tuple[Scorer, PairFeatures | None]:
    """Return the scorer of a release, and the features of its head if it has one."""
    if not (directory / FILE).exists():
        if (directory / "model" / "config.json").is_file():
            return _make_feature_scorer(f"reward:{directory / 'model'}"), None
        raise LabelguardError(
            f"{directory.name} holds labels, which give no reward; train a model on it: "
            f"labelguard train reward {directory.name} --model ID_OR_PATH -o DIR"
        )
    head = Head.load(directory)
    kinds = {part.strip().partition(":")[0] for part in head.features.split("+")}
    if parse_feature_columns(head.features) or "verdict" in kinds:
        raise LabelguardError(
            f"the head of {directory.name} reads {head.features}: columns of its pairs, which a "
            "text alone does not have; fit one on features of texts: --features length+style+text"
        )
    provider = head.load_provider(no_progress)
    provider.store_nothing()
    return lambda texts: head.predict_log_odds(provider(_pair_with_empty(texts))), provider


def _make_feature_scorer(spec: str) -> Scorer:
    """Return the scorer of features that are one number of each response."""
    part: Any = open_part(spec)
    if hasattr(part, "stored"):
        part.stored = False

    def score(texts: pa.Table) -> Floats:
        if hasattr(part, "scores"):
            return np.asarray(
                part.scores(_pair_with_response(texts, texts["response"])), np.float64
            )
        values = np.asarray(part(_pair_with_empty(texts)), np.float64)
        if values.ndim != 2 or values.shape[1] != 1:
            raise LabelguardError(f"a reward is one number; features {spec} are {values.shape[1]}")
        return values[:, 0]

    return score


class ReleaseReward:
    """A reward of (prompt, response), as TRL's `reward_funcs` take it.

    `learned_from` are the releases that it is a function of.
    """

    def __init__(
        self,
        name: str,
        scorers: Sequence[tuple[Scorer, float]],
        learned_from: tuple[LearnedRelease, ...],
        labeled: _LabeledResponses | None,
    ) -> None:
        self.__name__ = name  # by which TRL logs it
        self.learned_from = learned_from
        self._scorers = scorers
        self._labeled = labeled
        self._known: dict[bytes, float] = {}

    def __repr__(self) -> str:
        return (
            f"ReleaseReward({self.__name__!r}, of {pluralize(len(self.learned_from), 'release')})"
        )

    def __call__(
        self,
        prompts: Sequence[Content],
        completions: Sequence[Content],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float]:
        """Return the reward of each completion; log the mean distance where TRL takes metrics."""
        if log_metric is not None and self._labeled is not None:
            log_metric("distance", float(self.distances(prompts, completions).mean()))
        return [float(value) for value in self.score(prompts, completions)]

    def score(self, prompts: Sequence[Content], responses: Sequence[Content]) -> Floats:
        """Return the rewards, shape (n,); higher is better. Equal texts are computed once.

        Raises `ValueError` unless there are as many prompts as responses.
        """
        keys = [
            hashlib.sha256(json.dumps(texts).encode()).digest()
            for texts in zip(prompts, responses, strict=True)
        ]
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        missing = {key: row for row, key in enumerate(keys) if key not in self._known}
        if missing:
            rows = list(missing.values())
            texts = _make_text_table(
                [prompts[row] for row in rows], [responses[row] for row in rows]
            )
            total = np.zeros(len(rows))
            for scorer, weight in self._scorers:
                total += weight * scorer(texts)
            self._known.update(zip(missing, total.tolist(), strict=True))
        return np.array([self._known[key] for key in keys], np.float64)

    def distances(self, prompts: Sequence[Content], responses: Sequence[Content]) -> Floats:
        """Return how far responses are from the labeled ones, shape (n,), about 1 for one of these.

        The root mean square, over the features, of a response's deviation in standard deviations of
        the labeled responses. Raises `LabelguardError` where no labeled responses are at hand.
        """
        if self._labeled is None:
            raise LabelguardError("no labeled responses to compare with: name a reference release")
        return self._labeled.distances(_make_text_table(prompts, responses))


@dataclass(frozen=True)
class _LabeledResponses:
    """The responses of a release, and the features of its head, if it has one."""

    release: Path
    provider: PairFeatures | None

    def distances(self, texts: pa.Table) -> Floats:
        provider, mean, deviation = self._feature_statistics
        z = (provider(_pair_with_empty(texts)).astype(np.float64) - mean) / deviation
        return np.asarray(np.sqrt(np.mean(np.square(z), axis=1)))

    @cached_property
    def _feature_statistics(self) -> tuple[PairFeatures, Floats, Floats]:
        """Return the features, and their mean and standard deviation, (d,), over labeled texts."""
        pairs = scan_pairs(find_rows_path(self.release)).select(PAIRS).head(_ROWS).collect()
        prompt, chosen, rejected = (pairs.to_arrow()[name].combine_chunks() for name in PAIRS)
        provider = self.provider
        if provider is None:
            provider = open_provider(_PLAIN)
            provider.fit(pa.table({"prompt": prompt, "first": chosen, "second": rejected}))
        texts = pa.table(
            {
                "prompt": pa.concat_arrays([prompt, prompt]),
                "response": pa.concat_arrays([chosen, rejected]),
            }
        )
        values = provider(_pair_with_empty(texts)).astype(np.float64)
        deviation = values.std(axis=0)
        # A feature that no labeled response has counts by the spread of the others.
        usual = deviation.max() or 1.0
        return provider, values.mean(axis=0), np.where(deviation > 0, deviation, usual)


def _make_text_table(prompts: Sequence[Content], responses: Sequence[Content]) -> pa.Table:
    return pa.table({"prompt": _to_text_column(prompts), "response": _to_text_column(responses)})


def _to_text_column(contents: Sequence[Content]) -> pa.Array:
    if all(isinstance(content, str) for content in contents):
        return pa.array(contents, pa.large_string())
    message = pa.struct([("role", pa.large_string()), ("content", pa.large_string())])
    return pa.array(contents, pa.large_list(message))


def _pair_with_empty(texts: pa.Table) -> pa.Table:
    """Return pairs of each response and an empty one."""
    kind = texts["response"].type
    empty = [] if pa.types.is_large_list(kind) else ""
    return _pair_with_response(texts, pa.array([empty] * texts.num_rows, kind))


def _pair_with_response(texts: pa.Table, second: pa.ChunkedArray | pa.Array) -> pa.Table:
    return pa.table({"prompt": texts["prompt"], "first": texts["response"], "second": second})
