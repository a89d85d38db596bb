"""Synthesis: responses of a model to public prompts, labeled by what a release learned.

A synthesis is a directory like a release's. It is a function of the release, of public prompts and
of a public model (post-processing), so it has the release's guarantee and costs nothing further;
its card says of which release it is, by which cards of models name that one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from labelguard import extras
from labelguard._version import __version__
from labelguard.analysis.reward import Content, ReleaseReward, reward
from labelguard.clock import format_time
from labelguard.errors import LabelguardError
from labelguard.inputs.pairs import read_public_pairs
from labelguard.processes import require_one_process
from labelguard.project.opening import Where
from labelguard.release import card as cards
from labelguard.release.model_card import (
    LearnedRelease,
    find_learned_releases,
    list_learned_releases,
)
from labelguard.release.rows import ROWS
from labelguard.release.writer import (
    PARQUET,
    Release,
    build_output_schema,
    read_card,
    split_by_preference,
    verify_release_directory,
)
from labelguard.storage.files import SUMS, format_sums, hash_file, hash_files, write_atomically
from labelguard.text import Progress, no_progress
from labelguard_trainer.alignment.candidates import pair_responses
from labelguard_trainer.alignment.contents import read_prompts
from labelguard_trainer.alignment.generation import SamplingSettings, open_responder
from labelguard_trainer.training import models
from labelguard_trainer.training.runs import RunDirectory, check_new_directory, mark_complete
from labelguard_trainer.training.settings import hide_directory

MECHANISM = "synthesis"
Pairing = Literal["all", "extremes"]
# Responses that are generated between two checkpoints.
_CHUNK = 512
_NOT_PROTECTED = (
    "prompts and responses of this synthesis: public texts, the responses written by the model "
    "that the card names as generator"
)


@dataclass(frozen=True)
class SynthesisResult:
    """Responses that were labeled by a release."""

    # the directory
    path: str
    # its id
    release: str
    # the release whose price it has
    derived_from: str
    # how many prompts were asked
    prompts: int
    # labeled pairs
    rows: int
    # prompts without two different responses
    without_pair: int
    # ε of the guarantee, which is that of the release
    epsilon: float
    # its δ
    delta: float
    # who is protected
    unit: str
    # other releases that the generator or the reward learned from; their prices add
    learned_from: tuple[str, ...]


def synthesize(
    release: Release | str | Path,
    prompts: str | Path,
    model: str | Path,
    n: int,
    output: str | Path,
    *,
    pairs: Pairing = "all",
    reward_model: str | Path | None = None,
    url: str | None = None,
    project: Where = None,
    progress: Progress = no_progress,
    **sampling: Any,
) -> SynthesisResult:
    """Write pairs of `n` responses of a model to each prompt of a file, labeled by a release.

    The release gives the reward, or `reward_model`, a directory of `train reward` on it. Of each
    prompt all pairs of different responses are labeled, or (`extremes`) the best against the worst.
    `label_probability` is σ of the difference of the rewards: what the model behind the reward
    says, not a share of people who were asked. `url` and `sampling` are as for `generate`.

    Works in `OUTPUT.partial`, where the same call goes on after an interruption. Nothing is
    charged. Raises `LabelguardError` for a model that was trained on raw labels, or a reward that
    did not learn from the release, `ProjectError` for a release that was altered.

    Example:
        >>> synthesize("r0001", "prompts.parquet", "base", 4, "synthesis", max_new_tokens=128)
    """
    extras.require_extra("train", "labelguard synthesize")
    require_one_process("synthesis")
    if n < 2:
        raise LabelguardError(f"a pair takes two responses, found n = {n}")
    run, settings, name = RunDirectory(Path(output)), SamplingSettings(**sampling), str(model)
    check_new_directory(run.output)
    parent = verify_release_directory(release, project)
    card = read_card(parent)
    origin, *others = list_learned_releases(card, hash_file(parent / SUMS))
    source = reward(release if reward_model is None else Path(reward_model), project=project)
    if origin.sums not in {one.sums for one in source.learned_from}:
        raise LabelguardError(f"{reward_model} did not learn from {origin.release}")
    learned = (*others, *find_learned_releases(name, private=True), *source.learned_from)
    others = list({one.sums: one for one in learned if one.sums != origin.sums}.values())
    contents = read_prompts(prompts)
    responder = open_responder(name, url)
    generator = {
        "model": hide_directory(name),
        "identity": _identify_generator(name, url),
        "n": n,
        "pairs": pairs,
        "sampling": asdict(settings),
    }
    parameters = {
        "synthesis": 1,
        "release": origin.sums,
        "rewards": sorted(one.sums for one in source.learned_from),
        "reward_model": reward_model and models.identity(str(reward_model)),
        "prompts": hashlib.sha256(json.dumps(contents).encode()).hexdigest(),
        **generator,
    }
    responder.check(contents, settings)
    with run.begin(parameters):
        chunks = max(_CHUNK // n, 1)
        responses: list[list[Content]] = []
        for start in range(0, len(contents), chunks):
            checkpoint = run.checkpoints / f"checkpoint-{start}"
            file = checkpoint / "responses.json"
            if not file.exists():
                part = contents[start : start + chunks]
                drawn = replace(settings, seed=settings.seed_of(start))
                progress("generating", start / len(contents))
                own = responder.respond(part, n, drawn, no_progress)
                checkpoint.mkdir(parents=True)
                write_atomically(file, json.dumps(own).encode())
                mark_complete(checkpoint)
            responses += json.loads(file.read_bytes())
        progress("labeling", None)
        rows = _label_pairs(source, pair_responses(contents, responses, all_pairs=True), pairs)
        began = datetime.fromtimestamp((run.path / "run.json").stat().st_mtime, UTC)
        digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()
        made = _build_card(card, origin, others, generator) | {
            "release": f"{origin.release}-{MECHANISM}-{digest[:8]}",
            "created_at": format_time(began),
            "counts": {"rows": rows.num_rows, "prompts": len(contents)},
        }
        _write_release(rows, made, run.finished_path)
        run.publish()
    labeled = len(set(map(json.dumps, rows["prompt"].to_pylist())))
    return SynthesisResult(
        str(run.output),
        made["release"],
        origin.release,
        len(contents),
        rows.num_rows,
        len(contents) - labeled,
        origin.epsilon,
        origin.delta,
        origin.unit,
        tuple(one.release for one in others),
    )


def _identify_generator(model: str, url: str | None) -> str:
    """Return what tells a generator from others; of a server's model its name alone is known."""
    if url is None or Path(model).is_dir():
        return models.identity(model)
    return f"{model}, served"


def _label_pairs(source: ReleaseReward, pairs: pa.Table, pairing: Pairing) -> pa.Table:
    """Return the rows of a release, sorted by item, each with the side that the reward prefers."""
    if not pairs.num_rows:
        raise LabelguardError("all responses to each prompt are equal: raise the temperature")
    distinct = read_public_pairs(pairs, unit="none")
    prompts = distinct.table["prompt"].to_pylist()
    first, second = (
        source.score(prompts, distinct.table[s].to_pylist()) for s in ("first", "second")
    )
    difference = first - second
    if not np.isfinite(difference).all():
        raise LabelguardError(f"rewards of {source.__name__} are no finite numbers")
    chosen, rejected = split_by_preference(
        distinct.table, np.arange(len(difference)), difference >= 0
    )
    probability = 0.5 * (1 + np.tanh(np.abs(difference) / 2))
    schema = build_output_schema(chosen.type)
    nothing = pa.nulls(len(difference), pa.float64())
    columns = [
        distinct.table["prompt"],
        chosen,
        rejected,
        distinct.ids,
        probability,
        nothing,
        nothing,
    ]
    rows = pa.table(dict(zip(schema.names, columns, strict=True))).cast(schema)
    if pairing == "extremes":
        # The best of a prompt against the worst is its pair with the largest difference.
        frame = pl.DataFrame({"prompt": list(map(json.dumps, prompts)), "by": np.abs(difference)})
        widest = frame.with_row_index("row").sort("by", descending=True, maintain_order=True)
        rows = rows.take(
            widest.unique("prompt", keep="first", maintain_order=True)["row"].to_arrow()
        )
    return rows.sort_by("item_id")


def _build_card(
    card: Mapping[str, Any],
    origin: LearnedRelease,
    others: list[LearnedRelease],
    generator: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the card but for what follows from the run; the guarantee is that of the release."""
    head = card.get("head", {}).get("features")
    return {
        "release": "",
        "labelguard": __version__,
        "format": 1,
        "created_at": "",
        "kind": "teacher",
        "mechanism": MECHANISM,
        "mechanism_version": 1,
        "privacy": card["privacy"],
        "counts": {},
        "derived_from": {"release": origin.release, "sums": origin.sums},
        "generator": generator,
        **({"learned_from": [asdict(one) for one in others]} if others else {}),
        **({"head": {"features": head}} if head else {}),
        "train_with": "soft",
        "not_protected": [*card["not_protected"], _NOT_PROTECTED],
    }


def _write_release(rows: pa.Table, card: Mapping[str, Any], directory: Path) -> None:
    """Write the files of a release into an empty directory."""
    pq.write_table(rows, directory / ROWS, **PARQUET)
    (directory / "card.json").write_text(cards.format_json(card), encoding="utf-8")
    (directory / "CARD.md").write_text(cards.format_markdown(card), encoding="utf-8")
    (directory / SUMS).write_text(format_sums(hash_files(directory)), encoding="ascii")
