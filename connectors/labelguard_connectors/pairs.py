"""The pairs of a release, as tools show them: to be compared anew, and nobody's name."""

from __future__ import annotations

import duckdb
import polars as pl

from labelguard.errors import ConnectorError

SIDES = ("response_a", "response_b")
_COLUMNS = {"prompt", "chosen", "rejected", "item_id", "label_probability"}


def pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each pair of released rows once: item_id, question if rows have one, prompt, sides.

    Sides stand in the order of their contents, so that nobody can see which was preferred.
    `probability` is that of A being preferred, the mean of a pair's rows, and null where the
    release has none; `share` is the same, with what was released taken for certain there. Raises
    `ConnectorError` for what is no release of pairs.
    """
    if not set(rows.columns) >= _COLUMNS:
        raise ConnectorError("this is no release of pairs; push one of pairs")
    question = "question," if "question" in rows.columns else ""
    with duckdb.connect() as connection:
        connection.register("rows", rows.to_arrow())
        found: pl.DataFrame = connection.sql(f"""
            WITH sided AS (
                SELECT *, row_number() OVER () AS place,
                    to_json(chosen)::VARCHAR <= to_json(rejected)::VARCHAR AS in_order
                FROM rows)
            SELECT item_id, {question} first(prompt) AS prompt,
                first(CASE WHEN in_order THEN chosen ELSE rejected END) AS {SIDES[0]},
                first(CASE WHEN in_order THEN rejected ELSE chosen END) AS {SIDES[1]},
                avg(CASE WHEN in_order THEN label_probability ELSE 1 - label_probability END)
                    AS probability,
                avg(CASE WHEN in_order THEN coalesce(label_probability, 1)
                    ELSE 1 - coalesce(label_probability, 1) END) AS share
            FROM sided GROUP BY {question} item_id ORDER BY min(place)""").pl()
    return found
