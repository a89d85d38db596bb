"""Labels of single responses are refused with a way out, and that way looks at no label."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import polars as pl
import pytest

import labelguard as lg
from labelguard.errors import InvalidLabels

ROOT = Path(__file__).parents[2]


def thumbs(completion: object = "a", **columns: object) -> list[dict[str, object]]:
    prompt = completion if isinstance(completion, str) else [{"role": "user", "content": "q"}]
    return [{"prompt": prompt, "completion": completion, "label": up, **columns} for up in (1, 0)]


CHAT = [{"role": "assistant", "content": "a"}]


@pytest.mark.quick("parquet-text-True", "jsonl-text-True")
@pytest.mark.parametrize("labeled", [True, False])
@pytest.mark.parametrize("completion", ["a", CHAT], ids=["text", "chat"])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_single_labels_are_named_whether_or_not_a_label_is_there(
    tmp_path: Path, completion: object, kind: str, labeled: bool
) -> None:
    rows = pl.DataFrame(thumbs(completion, labeler_id="u"))
    rows = rows if labeled else rows.drop("label")
    path = tmp_path / f"thumbs.{kind}"
    rows.write_parquet(path) if kind == "parquet" else rows.write_ndjson(path)
    project = lg.init(tmp_path / "project")
    said = set()
    for act in (lg.inspect, lambda file: lg.privatize(file, project=project)):
        with pytest.raises(InvalidLabels, match=r"thumbs up or down\) are not supported") as error:
            act(path)
        said.add(str(error.value))
    (one,) = said
    page, _, anchor = re.findall(r"docs/\S+", one)[0].partition("#")
    headings = re.findall(r"(?m)^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"))
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_a_completion_beside_two_responses_is_a_column_like_any_other() -> None:
    rows = [row | {"response_a": "x", "response_b": "y"} for row in thumbs()]
    assert lg.inspect(pl.DataFrame(rows)).format == "pairs"


@pytest.mark.slow
def test_the_page_makes_rankings_of_thumbs_that_exist_whatever_the_thumbs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "thumbs" in c)
    rated = [("u", "p", "b"), ("u", "p", "a"), ("v", "p", "a"), ("v", "q", "c"), ("v", "q", "d")]
    public, seen = set(), set()
    for labels in itertools.product([True, False, None], repeat=len(rated)):
        rows = [
            {"labeler_id": labeler, "prompt": prompt, "completion": text, "label": label}
            for (labeler, prompt, text), label in zip(rated, labels, strict=True)
        ]
        Path("thumbs.jsonl").write_text("\n".join(map(json.dumps, rows)))
        exec(code, {})
        found = pl.read_parquet("rankings.parquet")
        public.add(str(found.drop("ranks").rows()))
        seen.add(str(found["ranks"].to_list()))
    assert public == {str([("u", "p", ["a", "b"]), ("v", "q", ["c", "d"])])}
    assert len(seen) == 3**4  # a single rating of v compares nothing
    release = lg.privatize(
        found, mechanism="rr", epsilon=3, delta=1e-5, project=lg.init(tmp_path / "p")
    )
    assert release.card["counts"]["rows"] == 2
