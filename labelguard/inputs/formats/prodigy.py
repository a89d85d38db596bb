"""Tasks of Prodigy's choice interface: options with ids, and those that were accepted."""

from __future__ import annotations

from labelguard.budget.label_values import LabelValues
from labelguard.inputs.columns import NO_PROMPT, TableSchema
from labelguard.inputs.formats import tasks
from labelguard.inputs.formats.base import FormatQuery
from labelguard.inputs.readers import source_column

_PROMPTS = ("prompt", "question", "instruction", "text", "html", "title")
# Who answered: the session's name, if it was given one.
_SESSIONS = ("_annotator_id", "_session_id")
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ _T][0-9]{2}[-:][0-9]{2}[-:][0-9]{2}$"


def adapt(schema: TableSchema) -> FormatQuery:
    """Read a row for each task: the texts of its options, and the number of the accepted one.

    A task that was rejected or ignored is a skip. Raises `InvalidLabels` where sessions, which are
    public, are called by the time when they began.
    """
    named = schema.reading.columns
    labeler = named.get("labeler_id", next((n for n in _SESSIONS if schema.has(n)), ""))
    if labeler in _SESSIONS and schema.has(labeler):
        _refuse_times(schema, labeler)
    prompt = named.get("prompt", next((n for n in _PROMPTS if schema.has(n)), ""))
    if prompt and not schema.has(prompt):
        raise schema.missing_error(f"no column {prompt!r} (given for prompt)")
    options = tasks.elements_sql(source_column("options"))
    question = source_column(prompt) if prompt else "''"
    made = {"prompt": question, "responses": f"list_transform({options}, lambda o: o->>'text')"}
    names = {"prompt": prompt or NO_PROMPT, "responses": "options"}
    if schema.reading.labelled:
        accepted = tasks.elements_sql(schema.column_sql("accept"))
        ids = f"list_transform({options}, lambda o: o->>'id')"
        chosen = f"list_position({ids}, {accepted}[1]->>'$') - 1"
        made["choice"] = f"""CASE WHEN {schema.trimmed_text_sql("answer")} <> 'accept' THEN NULL
            WHEN coalesce(len({accepted}), 0) = 0 THEN NULL
            WHEN len({accepted}) = 1 AND {chosen} IS NOT NULL THEN ({chosen})::VARCHAR
            ELSE 'no option' END"""
        names["choice"] = "accept"
    columns = {"labeler_id": labeler} if labeler else {}
    pieces = ", ".join(f"{sql} AS {role}" for role, sql in made.items())
    query = f"SELECT {schema.select_public_except(*made, 'options')}{pieces} FROM part"
    return FormatQuery(query, frozenset(made), columns, LabelValues(first=0), names)


def _refuse_times(schema: TableSchema, labeler: str) -> None:
    """Raise `InvalidLabels` if a session is called by a time, which is nobody's name."""
    session = f"{source_column(labeler)}::VARCHAR"
    if schema.select(f"SELECT 1 FROM part WHERE regexp_matches({session}, '{_TIME}') LIMIT 1"):
        raise schema.error(
            f"column {labeler} names sessions by the time when they began, and a person has a new "
            "one at every start: it tells nobody apart. Name the column that says who answered, "
            "--labeler-column NAME (Prodigy names sessions by people where they open the page with "
            "?session=NAME)"
        )
