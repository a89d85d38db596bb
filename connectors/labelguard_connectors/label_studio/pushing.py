"""A release as a project of Label Studio: its pairs to compare anew, and nobody's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from labelguard.errors import ConnectorError

_MODEL = "labelguard"
_TEXT = '<Text name="{name}" value="${name}"/>'
_CHAT = (
    '<Paragraphs name="{name}" value="${name}" layout="dialogue" nameKey="role" textKey="content"/>'
)
_SHORTEST, _LONGEST = 3, 50


def checked(name: str) -> str:
    """A project's title. Raises `ConnectorError` for one that Label Studio would refuse."""
    if not _SHORTEST <= len(name.strip()) <= _LONGEST:
        raise ConnectorError(
            f"a project of Label Studio has a name of {_SHORTEST} to {_LONGEST} characters; "
            "choose another"
        )
    return name.strip()


def config(frame: pl.DataFrame) -> str:
    """The labeling interface: a prompt, and which of two responses is better."""
    tags = {
        name: (_TEXT if frame.schema[name] == pl.String else _CHAT).format(name=name)
        for name in ("prompt", "response_a", "response_b")
    }
    return f"""<View>
  {tags["prompt"]}
  <Pairwise name="preference" toName="response_a,response_b"/>
  {tags["response_a"]}
  {tags["response_b"]}
</View>"""


def tasks(frame: pl.DataFrame) -> Iterator[Mapping[str, Any]]:
    """Tasks to import; where a probability is released, it is a prediction."""
    for row in frame.iter_rows(named=True):
        probability, _ = row.pop("probability"), row.pop("share")
        data = {name: value for name, value in row.items() if value is not None}
        predictions = [] if probability is None else [_prediction(probability)]
        yield {"data": data, "predictions": predictions}


def _prediction(probability: float) -> Mapping[str, Any]:
    left = probability >= 0.5
    region = {
        "from_name": "preference",
        "to_name": "response_a",
        "type": "pairwise",
        "value": {"selected": "left" if left else "right"},
    }
    score = probability if left else 1 - probability
    return {"model_version": _MODEL, "score": score, "result": [region]}
