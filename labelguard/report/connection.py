"""`connect check`: what a connector understands of a tool, from its first answers."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from labelguard.answers import connector as connectors
from labelguard.answers.connector import Answer, Connector, Settings
from labelguard.errors import InvalidLabels
from labelguard.inputs.columns import Reading
from labelguard.inputs.left_out import SKIP
from labelguard.inputs.query import PUBLIC_FAULTS
from labelguard.inputs.staging import canonical_rows
from labelguard.project.opening import OpenProject, Where
from labelguard.text import LABEL_SKIP

ANSWERS = 10
_SHOWN = 60


@dataclass(frozen=True)
class Comparison:
    """One comparison that was understood; what was answered is not told."""

    labeler: str
    """who answered, by the tool's id"""
    prompt: str
    """how the prompt begins"""
    responses: list[str]
    """how the two responses begin, in the order of their bytes"""
    fault: str | None
    """why it cannot be used"""


@dataclass(frozen=True)
class Checked:
    """What a connector understands."""

    connector: str
    """its name"""
    kind: str
    """the tool"""
    source: str
    """whose labelers these are"""
    about: Mapping[str, str]
    """what the tool says of the project or data set"""
    question: str | None
    """what is read, where several things were asked"""
    answers: int
    """answers that were looked at"""
    skipped: int
    """comparisons that were skipped"""
    comparisons: list[Comparison]
    """what was compared in them"""
    left_out: Mapping[str, int]
    """answers that no release counts, by reason; skips have a count of their own"""
    notes: list[str]
    """what to settle before the first release"""


def check(name: str, project: Where = None) -> Checked:
    """Read the first answers of a tool, and store nothing.

    Raises `ConnectorError` if the tool cannot be reached, `InvalidLabels` if its tasks cannot be
    read as labelguard.toml says.
    """
    opened = OpenProject.open(project)
    settings = connectors.named(opened.project.connectors, name)
    tool = connectors.connector(settings)
    about = tool.about()
    answers = list(islice(_answers(tool), ANSWERS))
    if not answers:
        raise InvalidLabels(f"connector {name}: nothing was answered in the tool so far")
    with tempfile.TemporaryDirectory(prefix="labelguard-") as directory:
        path = Path(directory) / f"{name}.jsonl"
        path.touch(mode=0o600)
        path.write_text("".join(f"{answer.body}\n" for answer in answers))
        record = opened.ledger.policies.active()
        # Where skips are hidden among ties, nothing may tell which are.
        skips = record.policy.skips if record else "public"
        reading = Reading(settings.columns, question=settings.question, skips=skips)
        rows = [row for batch in canonical_rows(path, reading) for row in _rows(batch)]
    skipped = sum(row is None for row in rows)
    return Checked(
        name,
        settings.kind,
        settings.source,
        dict(about),
        settings.question,
        len(answers),
        skipped,
        [row for row in rows if row],
        dict(Counter(one.left_out for one in answers if one.left_out not in ("", SKIP))),
        list(_notes(settings, about)),
    )


def _notes(settings: Settings, about: Mapping[str, str]) -> Iterator[str]:
    if settings.question is None and "," in about.get("questions", ""):
        yield (
            f'several things are asked: name the one that is read (question = "NAME" in '
            f"[connectors.{settings.name}]) before the first release; later, every label would be "
            "new, and charged again"
        )
    yield (
        "labels are read as the tool's own words for the two sides, or the names of their fields; "
        "where it has others, name them at the first release (--label-values "
        "a=first,b=second,tie=same): a word outside is released as a tie"
    )


def _answers(tool: Connector) -> Iterator[Answer]:
    for page in tool.pull():
        yield from page.answers


def _rows(batch: pa.RecordBatch) -> Iterator[Comparison | None]:
    """The comparisons of a batch; None for those that were skipped."""
    names = ["labeler", "prompt", "first", "second", "fault"]
    skips = (batch["label"].to_numpy() == LABEL_SKIP).tolist()
    for row, skip in zip(batch.select(names).to_pylist(), skips, strict=True):
        role, why = PUBLIC_FAULTS.get(row["fault"], ("", ""))
        fault = f"{role}: {why}" if role else None
        sides = [_beginning(row["first"]), _beginning(row["second"])]
        yield None if skip else Comparison(row["labeler"], _beginning(row["prompt"]), sides, fault)


def _beginning(content: Any) -> str:
    text = content if isinstance(content, str) else " | ".join(m["content"] for m in content or ())
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
