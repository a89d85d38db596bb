"""Candidates: several responses of a model to each public prompt, or pairs of them to annotate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from labelguard.analysis.reward import Content
from labelguard.errors import LabelguardError
from labelguard.processes import require_one_process
from labelguard.release.model_card import find_learned_releases
from labelguard.text import Progress, no_progress
from labelguard_trainer.alignment.contents import (
    check_new_rows_file,
    distinct,
    read_prompts,
    to_content_array,
    write_rows,
)
from labelguard_trainer.alignment.generation import generate


@dataclass(frozen=True)
class Candidates:
    """Responses that were generated."""

    # the file
    path: str
    # how many prompts were asked
    prompts: int
    # rows in the file: responses, or pairs
    rows: int
    # prompts without two different responses, of which no pair was made
    without_pair: int
    # releases that the model learned from: what it writes is a function of them
    learned_from: tuple[str, ...]


def write_candidates(
    model: str,
    prompts: str | Path,
    output: str | Path,
    *,
    n: int,
    pairs: bool = False,
    progress: Progress = no_progress,
    **sampling: Any,
) -> Candidates:
    """Write `n` responses of a model to each distinct prompt of a file: prompt, response,
    candidate (their number, from 0).

    With `pairs` write the first two different responses of each prompt: prompt, response_a and
    response_b, as people are asked about them. `sampling` is as for `generate`.

    Raises `LabelguardError` for a model that was trained on raw labels: what it writes tells them.
    """
    require_one_process("writing candidates")
    path = Path(output)
    check_new_rows_file(path, "candidates.parquet")
    if n < 1 + pairs:
        raise LabelguardError(f"a pair takes two candidates, found n = {n}" if pairs else "n < 1")
    learned = tuple(one.release for one in find_learned_releases(model, private=True))
    contents = read_prompts(prompts)
    responses = generate(model, contents, n, progress=progress, **sampling)
    rows = (pair_responses if pairs else _number_responses)(contents, responses)
    if not rows.num_rows:
        raise LabelguardError("all responses to each prompt are equal: raise the temperature")
    write_rows(rows, path)
    without = len(contents) - rows.num_rows if pairs else 0
    return Candidates(str(path), len(contents), rows.num_rows, without, learned)


def pair_responses(
    prompts: Sequence[Content], responses: Sequence[Sequence[Content]], *, all_pairs: bool = False
) -> pa.Table:
    """Return prompt, response_a and response_b: all pairs of different responses, or the first."""
    rows = [
        (prompt, *pair)
        for prompt, own in zip(prompts, responses, strict=True)
        for pair in islice(combinations(distinct(own), 2), None if all_pairs else 1)
    ]
    names = ("prompt", "response_a", "response_b")
    return pa.table([to_content_array([row[k] for row in rows]) for k in range(3)], names)


def _number_responses(
    prompts: Sequence[Content], responses: Sequence[Sequence[Content]]
) -> pa.Table:
    n = len(responses[0])
    return pa.table(
        {
            "prompt": to_content_array([prompt for prompt in prompts for _ in range(n)]),
            "response": to_content_array(list(chain.from_iterable(responses))),
            "candidate": pa.array([*range(n)] * len(prompts), pa.int32()),
        }
    )
