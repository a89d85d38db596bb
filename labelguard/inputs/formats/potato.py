"""Exports of Potato: one row for each annotator and instance, with the answers of every schema.

They name instances without their texts, so the fields of the task's data file must be joined to
them first. Machine annotators, which a study may declare, are left out.
"""

from __future__ import annotations

from labelguard.errors import InvalidLabels
from labelguard.inputs.formats import tasks
from labelguard.inputs.formats.seen import Adapted, Format, Seen
from labelguard.inputs.formats.tasks import PAIR, SIDES, Task, fields
from labelguard.inputs.left_out import MACHINE
from labelguard.inputs.readers import identifier, literal

_TOOL = "Potato"
_PEOPLE = ("user_id", "annotator")
_SELECTION = ".selection"
_A, _B = ("A", "a"), ("B", "b")
_SAID = ("labels", "spans", "links")
_OF_TOOL = (
    *("instance_id", *_PEOPLE, "annotator_origin", "annotator_origin_detail"),
    *_SAID,
)


def _recognises(seen: Seen) -> bool:
    ours = seen.has("labeler_id") or seen.column("label")
    return seen.has("instance_id") and not ours


def _adapt(seen: Seen) -> Adapted | None:
    people = (seen.reading.columns.get("labeler_id", ""), *_PEOPLE)
    person = next((name for name in people if seen.has(name)), None)
    if seen.all("prompt", "chosen", "rejected"):
        return Adapted("SELECT * FROM part", frozenset(), {"labeler_id": person} if person else {})
    tasks.refuse_named(seen, _TOOL, ("label",))
    tasks.refuse_answers(seen, _TOOL, _is_answer)
    answers = _answers(seen)
    task = _task(seen, answers)
    used = fields(seen, tuple(task.fields))
    columns = not seen.has("labels") and not seen.sparse
    asked = tasks.answered(seen, lambda: sorted(answers), "schema", all_there=columns)
    said = _selected(asked) if seen.has("labels") else answers.get(asked, "NULL::VARCHAR")
    tasks.refuse_lists(seen, used)
    meaning = tasks.values(seen, used, _A, _B)
    told = f", {identifier(person)}::VARCHAR AS labeler_id" if person else ""
    query = f"""
        SELECT {task.select(seen, used)}{told}, {said} AS label
        FROM part WHERE {_of_people(seen)}"""
    made = {*PAIR, "labeler_id"} if person else {*PAIR}
    label = tasks.shown(seen) if seen.has("labels") else asked
    names = used.names(label=label, **({"labeler_id": person} if person else {}))
    machines = f"SELECT {literal(MACHINE)}, count(*) AS n FROM part WHERE NOT {_of_people(seen)}"
    left_out = f"SELECT * FROM ({machines}) WHERE n > 0"
    return Adapted(
        query, frozenset(made), names=names, values=meaning, usual=True, left_out=left_out
    )


def _is_answer(role: str, name: str) -> bool:
    """Answers are in SCHEMA.selection, SCHEMA.likert, SCHEMA:::label, or in one column."""
    return "." in name or ":::" in name or name in (*_SAID, "chosen")


def _answers(seen: Seen) -> dict[str, str]:
    """SQL (text) of the answer of every schema; of none where that they were given is private."""
    if seen.has("labels"):  # JSONL: {"schema": {"selection": "A"}}
        if seen.private_blanks:
            return {}
        found = seen.names(
            "SELECT DISTINCT unnest(json_keys(to_json(labels))) AS name FROM part ORDER BY name"
        )
        return {name: _selected(name) for (name,) in found}
    columns = [name for name in seen.types if name.endswith(_SELECTION)]  # CSV, TSV
    if columns:
        return {name.removesuffix(_SELECTION): f"{identifier(name)}::VARCHAR" for name in columns}
    return {"chosen": "chosen::VARCHAR"} if seen.has("chosen") else {}  # coding_eval: A or B


def _selected(name: str) -> str:
    answer = f"json_extract(to_json(labels), {tasks.pointer(name)})"
    return f"coalesce({answer}->>'selection', {answer}->>'label')"


def _task(seen: Seen, answers: dict[str, str]) -> Task:
    """The fields that were joined to the answers; a list of two responses is A and B."""
    task = Task.columns(seen, (*_OF_TOOL, *answers, *(name + _SELECTION for name in answers)))
    found = dict(task.fields)
    if "responses" in found and not set(SIDES) & set(found):
        listed = found.pop("responses")
        found |= {
            role: f"(CASE WHEN len({listed}) = {len(SIDES)} THEN {listed}[{place}] END)"
            for place, role in enumerate(SIDES, 1)
        }
    found["instance_id"] = "instance_id"
    if len(found) <= len(SIDES):
        raise InvalidLabels(
            f"{seen.part}: exports of Potato name instances without their texts; join your data "
            "file to it by instance_id first, so that every row has its prompt and responses"
        )
    return Task(found)


def _of_people(seen: Seen) -> str:
    if not seen.has("annotator_origin"):
        return "true"
    return (
        "coalesce(CASE WHEN json_valid(annotator_origin::VARCHAR) "
        "THEN annotator_origin::VARCHAR::JSON->>'kind' END, annotator_origin::VARCHAR, 'human') "
        "IN ('human', '')"
    )


POTATO = Format(
    "potato",
    "answers of Potato (instance_id, user_id or annotator, SCHEMA.selection or labels), joined "
    "with the fields of its data file",
    _recognises,
    _adapt,
    "Potato names them in its exports csv, tsv and jsonl (user_id) and coding_eval (annotator).",
    of_tool=("instance_id", *_PEOPLE),
)
