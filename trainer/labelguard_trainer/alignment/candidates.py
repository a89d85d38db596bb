"""Candidates: several responses of a model to each public prompt, or pairs of them to annotate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa

from labelguard.errors import LabelguardError
from labelguard.release.model_card import base_of
from labelguard.text import Progress, no_progress
from labelguard_trainer.alignment.contents import (
    check_rows_file,
    content_array,
    key_of,
    read_prompts,
    write_rows,
)
from labelguard_trainer.alignment.generation import generate
from labelguard_trainer.alignment.sampling import Content


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
    path = Path(output)
    check_rows_file(path, "candidates.parquet")
    if n < 1 + pairs:
        raise LabelguardError(f"a pair takes two candidates, found n = {n}" if pairs else "n < 1")
    learned = tuple(one.release for one in base_of(model, private=True))
    contents = read_prompts(prompts)
    responses = generate(model, contents, n, progress=progress, **sampling)
    rows = (
        pairs_table(contents, responses, all_pairs=False) if pairs else _rows(contents, responses)
    )
    if not rows.num_rows:
        raise LabelguardError("all responses to each prompt are equal: raise the temperature")
    write_rows(rows, path)
    without = len(contents) - rows.num_rows if pairs else 0
    return Candidates(str(path), len(contents), rows.num_rows, without, learned)


def pairs_table(
    prompts: Sequence[Content], responses: Sequence[Sequence[Content]], *, all_pairs: bool
) -> pa.Table:
    """Return prompt, response_a and response_b: all pairs of different responses, or the first."""
    rows: list[tuple[Content, ...]] = []
    for prompt, own in zip(prompts, responses, strict=True):
        distinct = list({key_of(response): response for response in own}.values())
        both = list(combinations(distinct, 2))
        rows += [(prompt, *pair) for pair in (both if all_pairs else both[:1])]
    names = ("prompt", "response_a", "response_b")
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(dict(zip(names, map(content_array, columns), strict=True)))


def _rows(prompts: Sequence[Content], responses: Sequence[Sequence[Content]]) -> pa.Table:
    rows = [
        (prompt, response, number)
        for prompt, own in zip(prompts, responses, strict=True)
        for number, response in enumerate(own)
    ]
    questions, answers, numbers = zip(*rows, strict=True)
    return pa.table(
        {
            "prompt": content_array(questions),
            "response": content_array(answers),
            "candidate": pa.array(numbers, pa.int32()),
        }
    )
