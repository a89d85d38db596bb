"""Exports with more texts than DuckDB may hold at once are read all the same."""

import json

import pytest

from labelguard.inputs import readers, sources
from labelguard.inputs.columns import Reading
from labelguard.inputs.formats import apply_format

ROWS, TEXT = 40_000, "x" * 4_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["label-studio", "chats"])
def test_what_is_looked_at_first_does_not_need_all_texts_at_once(kind, tmp_path):
    path = tmp_path / "export.jsonl"
    region = {"from_name": "p", "to_name": "a", "type": "pairwise", "value": {"selected": "left"}}
    with path.open("w") as file:
        for row in range(ROWS):
            fields = {"prompt": f"{row} {TEXT}", "answer1": "a", "answer2": "b"}
            annotation = {"id": row, "completed_by": row % 9, "result": [region]}
            task = {"id": row, "data": fields, "annotations": [annotation]}
            message = [{"role": "user", "content": fields["prompt"]}]
            chat = {"prompt": message, "chosen": message, "rejected": message, "labeler_id": "7"}
            file.write(json.dumps(task if kind == "label-studio" else chat) + "\n")
    (part,) = sources.resolve_input(path)
    with readers.connect(tmp_path / "spill") as connection:
        found = apply_format(part, connection, Reading({}))
        assert set(readers.read_columns(found.file, connection)) >= {"prompt", "labeler_id"}
