"""Labels of single responses are refused with a way out, and that way looks at no label."""

import itertools
import json
import re
from pathlib import Path

import polars as pl
import pytest

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.inputs.pairs import read_pairs

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
CHAT = {"prompt": [{"role": "user", "content": "q"}]}
CHAT |= {"completion": [{"role": "assistant", "content": "a"}]}


@pytest.mark.parametrize("texts", [{"prompt": "p", "completion": "a"}, CHAT])
def test_single_labels_are_named_whether_or_not_a_label_is_there(texts, tmp_path):
    rows = pl.DataFrame([texts | {"label": up, "labeler_id": "u"} for up in (1, 0)])
    said = set()
    for frame in (rows, rows.drop("label")):
        frame.write_parquet(tmp_path / "x.parquet")
        frame.write_ndjson(tmp_path / "x.jsonl")
        for act, path in (
            (lg.inspect, "x.parquet"),
            (lg.inspect, "x.jsonl"),
            (read_pairs, "x.jsonl"),
        ):
            with pytest.raises(InvalidLabels, match=r"thumbs up or down\) are not") as error:
                act(tmp_path / path)
            said.add(str(error.value).replace(path, "x"))
    (one,) = said
    anchor = re.findall(r"docs/formats.md#(\S+)", one)[0]
    headings = re.findall(r"(?m)^#+ (.*)$", PAGE.read_text(encoding="utf-8"))
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    sides = {"response_a": "x", "response_b": "y"}  # then a completion is a column like any other
    assert lg.inspect([{"prompt": "p", "completion": "a", "label": 1, **sides}]).format == "pairs"


@pytest.mark.slow
def test_the_page_makes_rankings_of_thumbs_that_exist_whatever_the_thumbs_say(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
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
