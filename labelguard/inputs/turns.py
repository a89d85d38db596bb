"""Prompts that contain answers: where a conversation goes on with the response that was chosen, the
next turn's prompt publishes the choice, whatever the noise on labels.

It shows in public columns: a prompt begins with another item's prompt and goes on with one of its
responses, of chats by their messages, of texts apart from white space and names of roles. Both
responses are looked at alike, and no label is read. Across releases a project keeps keyed digests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelguard.budget.label_values import Turns
from labelguard.errors import InvalidLabels
from labelguard.inputs import readers
from labelguard.inputs.readers import identifier, literal
from labelguard.inputs.staged import Staged
from labelguard.keys.keyring import KeyRing
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.text import pluralize

# Why rows are left out under `--turns first`.
LATER_TURN = "prompt with an earlier response (--turns first)"
# The file of a private map that has the digests of what its release published.
FILE = "turns.npz"
_SIDES = ("first", "second")
_ROLES = (
    r"(?:human|user|prompter|customer|question|q|instruction|input|system|"
    r"assistant|ai|bot|chatbot|model|gpt|agent|answer|a|response|output)"
)
# What stands between turns of a text: `Human:`, `### Response:`, `<|im_start|>user`, `[INST]`.
_TEMPLATES = (
    rf"<\|[^|>\n]{{1,40}}\|>(?:{_ROLES}\b)?|<(?:start|end)_of_turn>(?:{_ROLES}\b)?|"
    r"\[/?INST\]|<</?SYS>>|</?s>"
)
_NAMED = rf"(?:#+ *|\*\*)?{_ROLES}(?: \d+)?(?:\*\*)? *:(?:\*\*)?"
_MARKS = literal(rf"(?im)^[ \t]*{_NAMED}|{_TEMPLATES}")
_FIRST_MARKS = literal(rf"(?i)^\s*(?:(?:{_NAMED}|{_TEMPLATES})\s*)+")
_WHITE = "chr(9) || chr(10) || chr(13) || ' '"
# A text that no text with the same beginning comes after.
_LAST = "chr(1114111)"


@dataclass(frozen=True)
class Published:
    """Keyed digests of what earlier releases published, sorted: of each prompt with each of its
    `responses`, and of all that `prompts` begin with.
    """

    responses: NDArray[np.uint64]
    prompts: NDArray[np.uint64]

    @classmethod
    def read(cls, maps: Iterable[Path]) -> Published:
        """Return what the private maps in these directories hold; older ones have no such file."""
        parts = [np.load(path / FILE) for path in maps if (path / FILE).exists()]
        none = np.zeros(0, np.uint64)
        return cls(*(np.unique(np.concatenate([none, *(p[n] for p in parts)])) for n in _NAMES))


_NAMES = ("responses", "prompts")


def check_turns(
    staged: Staged, turns: Turns, keys: KeyRing, published: Published | None = None
) -> None:
    """Leave out items of which a prompt tells the choice (`first`), or raise `InvalidLabels`.

    Nothing is looked for where conversations were declared to go on independently of choices.
    """
    if turns == "independent" or not staged.rows:
        return
    if turns == "stop":
        if problem := explain_told_items(staged, keys, published):
            raise InvalidLabels(problem)
        return
    items = np.concatenate(_find_told_items(staged, keys, published))
    if told := len(items):
        _leave_out(staged, items)
        if not any(
            buckets.bucket_path(staged.rows_directory, b).stat().st_size
            for b in range(staged.buckets)
        ):
            raise InvalidLabels(f"--turns first leaves nothing: it leaves {told:,} items out")


def explain_told_items(
    staged: Staged, keys: KeyRing, published: Published | None = None
) -> str | None:
    """Return why items cannot be released, and the two ways out; None if all of them can."""
    if not staged.rows:
        return None
    later, continued = map(len, _find_told_items(staged, keys, published))
    reasons = []
    if later:
        reasons.append(
            f"{pluralize(later, 'item')} with a prompt that begins with another item's prompt and "
            "goes on with one of its responses"
        )
    if continued:
        reasons.append(
            f"{pluralize(continued, 'item')} with a response that a prompt of an earlier release "
            "goes on with"
        )
    if not reasons:
        return None
    return (
        f"{' and '.join(reasons)}: if the response was the one chosen, the prompt publishes the "
        "label. Leave such items out: --turns first; or declare that conversations went on "
        "independently of what was chosen: --turns independent (docs/pitfalls.md)"
    )


def _find_told_items(
    staged: Staged, keys: KeyRing, published: Published | None = None
) -> tuple[Blocks, Blocks]:
    """Return items whose prompt contains a response of another, here or of an earlier release, and
    further ones whose response an earlier release's prompt goes on with; each distinct, (n, 2).
    """
    with readers.connect(staged.directory / "turns") as connection:
        later = [np.zeros((0, 2), np.uint64)]
        continued = list(later)
        if _may_continue(staged):
            if staged.chat:
                pairs = _digest_pairs(staged, keys, connection)
                later.append(pairs.find_containing(pairs.responses))
            else:
                later.append(_find_continuing_texts(staged, connection))
        if published and len(published.responses):
            pairs = _digest_pairs(staged, keys, connection)
            later.append(pairs.find_containing(published.responses))
            continued.append(pairs.find_contained(published.prompts))
    items = blocks.unique(np.concatenate(later))[0]
    others = blocks.unique(np.concatenate(continued))[0]
    return items, others[blocks.find_positions(items, others) < 0]


def write_published(directory: Path, staged: Staged, keys: KeyRing, known: Published) -> None:
    """Write digests of a staged input that are not known into the directory of a private map."""
    with readers.connect(staged.directory / "turns") as connection:
        pairs = _digest_pairs(staged, keys, connection)
    new = {name: np.setdiff1d(getattr(pairs, name), getattr(known, name)) for name in _NAMES}
    np.savez(directory / FILE, **new)


def _may_continue(staged: Staged) -> bool:
    """Return whether any prompt is longer than the shortest one."""
    measure = pc.list_value_length if staged.chat else pc.binary_length
    lengths = [
        pc.min_max(measure(table["prompt"])).as_py()
        for bucket in range(staged.buckets)
        if (table := buckets.read_bucket(staged.texts_directory, bucket)) is not None
    ]
    return max(one["max"] for one in lengths) > min(one["min"] for one in lengths)


def _read_pairs(staged: Staged, names: Iterable[str], items: Blocks | None = None) -> pa.Table:
    """Return columns of the texts of all distinct pairs, or of those of some items (sorted)."""
    tables, names = [], [*names]
    for bucket in range(staged.buckets):
        table = buckets.read_bucket(staged.texts_directory, bucket)
        if table is None:
            continue
        item = blocks.unique(buckets.read_blocks(table, "item"))[1]
        number = np.zeros(len(item), np.int64)
        if "pair" in table.column_names and len(names) > 1:
            number = buckets.read_column(table, "pair").astype(np.int64)
        rows = np.sort(np.unique(item.astype(np.int64) << 16 | number, return_index=True)[1])
        if items is not None:
            whose = buckets.read_blocks(table, "item").take(rows, axis=0)
            rows = rows[blocks.find_positions(items, whose) >= 0]
        chosen = table.select([*names, "item_hi", "item_lo"])
        tables.append(chosen if len(rows) == len(table) else buckets.take_rows(chosen, rows))
    return pa.concat_tables(tables)


# Texts of one input.


def _find_continuing_texts(staged: Staged, connection: duckdb.DuckDBPyConnection) -> Blocks:
    """Return the items whose prompt, a text, begins with that of another and a response to it."""
    prompts = _read_pairs(staged, ["prompt"])
    connection.register("prompts", prompts)
    bare = f"trim(regexp_replace(prompt, {_FIRST_MARKS}, ''), {_WHITE})"
    connection.execute(
        f"CREATE TEMP TABLE bare AS SELECT item_hi, item_lo, {bare} AS text FROM prompts"
    )
    # In their order, each text that others begin with is followed by one of them.
    connection.execute(
        "CREATE TEMP TABLE begun AS SELECT DISTINCT before AS text FROM (SELECT text, "
        "lag(text) OVER (ORDER BY text) AS before FROM bare) "
        "WHERE text <> before AND starts_with(text, before)"
    )
    if not connection.execute("SELECT count(*) FROM begun").fetchall()[0][0]:
        return np.zeros((0, 2), np.uint64)
    suspects = _to_items(
        connection, "SELECT item_hi, item_lo FROM bare SEMI JOIN begun USING (text)"
    )
    longer = _to_items(connection, _beginning_sql("bare", "begun"))
    connection.register("pairs", _read_pairs(staged, ["prompt", *_SIDES], suspects))
    connection.register("longer", _read_pairs(staged, ["prompt"], longer))
    told = " UNION ".join(
        f"SELECT concat(nullif({_words_sql('prompt')} || ' ', ' '), {_words_sql(side)}, ' ') AS text"
        f" FROM pairs WHERE {_words_sql(side)} <> ''"
        for side in _SIDES
    )
    connection.execute(f"CREATE TEMP TABLE told AS {told}")
    connection.execute(
        "CREATE TEMP TABLE words AS SELECT item_hi, item_lo, "
        f"{_words_sql('prompt')} || ' ' AS text FROM longer"
    )
    return _to_items(connection, _beginning_sql("words", "told"))


def _words_sql(text: str) -> str:
    """Return SQL of a text without names of roles, its words apart by one blank."""
    plain = f"regexp_replace({text}, {_MARKS}, ' ', 'g')"
    return f"trim(regexp_replace({plain}, '[\\s:]+', ' ', 'g'))"


def _beginning_sql(texts: str, beginnings: str) -> str:
    """Return SQL of the items of texts that begin with one of the distinct beginnings.

    By one sort: a text has those beginnings that are before it and whose end is not.
    """
    return (
        "SELECT item_hi, item_lo FROM (SELECT *, sum(step) OVER (ORDER BY text, place "
        "ROWS UNBOUNDED PRECEDING) AS depth FROM ("
        f"SELECT text, 1 AS place, 0 AS step, item_hi, item_lo FROM {texts} UNION ALL "
        f"SELECT text, 0, 1, NULL, NULL FROM {beginnings} UNION ALL "
        f"SELECT text || {_LAST}, 0, -1, NULL, NULL FROM {beginnings})) "
        "WHERE place = 1 AND depth > 0"
    )


def _to_items(connection: duckdb.DuckDBPyConnection, sql: str) -> Blocks:
    return blocks.unique(buckets.read_blocks(connection.sql(sql).to_arrow_table(), "item"))[0]


# Digests of pairs, by pieces: messages of a chat, lines, sentences and turns of a text.


@dataclass(frozen=True)
class _Pairs:
    """Keyed digests of pairs: `prompts` of all that each prompt begins with, `prompt_of` its pair;
    `responses` of the prompts with each response, `response_of` its pair. `items` are (pairs, 2).
    """

    items: Blocks
    prompts: NDArray[np.uint64]
    prompt_of: NDArray[np.intp]
    responses: NDArray[np.uint64]
    response_of: NDArray[np.intp]

    def find_containing(self, responses: NDArray[np.uint64]) -> Blocks:
        """Return the items whose prompt begins with a prompt and its response."""
        return self.items[self.prompt_of[np.isin(self.prompts, responses)]]

    def find_contained(self, prompts: NDArray[np.uint64]) -> Blocks:
        """Return the items of which some prompt begins with the prompt and a response."""
        return self.items[self.response_of[np.isin(self.responses, prompts)]]


def _digest_pairs(staged: Staged, keys: KeyRing, connection: duckdb.DuckDBPyConnection) -> _Pairs:
    """Return the digests of a staged input: sums over pieces of a keyed function of its place."""
    table = _read_pairs(staged, ["prompt", *_SIDES])
    connection.register("digested", table)
    none = np.zeros(len(table), np.int64)

    def digest(
        column: str, start: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """Return the sum up to each piece, and which pair it is of; places begin at `start`."""
        sql = _pieces_sql(column, table.schema.field(column).type, whole=column == "prompt")
        listed = connection.sql(f"SELECT {sql} AS pieces FROM digested").to_arrow_table()
        lists = listed["pieces"].combine_chunks()
        count = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.intp)
        of = np.repeat(np.arange(len(count)), count)
        before = np.cumsum(count) - count
        place = np.arange(len(of)) - before[of] + start[of]
        piece = lists.flatten().to_numpy().astype(np.uint64)
        value = keys.digest_rows({"turn": piece, "turn place": place})[:, 0]
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(value, dtype=np.uint64)])
        return total[1:] - total[before[of]], of

    prompts, prompt_of = digest("prompt", none)
    length = np.bincount(prompt_of, minlength=len(table)).astype(np.int64)
    whole = np.zeros(len(table), np.uint64)
    whole[prompt_of] = prompts  # the last of each stays
    responses, response_of = [], []
    for side in _SIDES:
        sums, of = digest(side, length)
        last = np.flatnonzero(np.r_[of[1:] != of[:-1], True][: len(of)])
        responses.append(sums[last] + whole[of[last]])
        response_of.append(of[last])
    return _Pairs(
        buckets.read_blocks(table, "item"),
        prompts,
        prompt_of,
        np.concatenate(responses),
        np.concatenate(response_of),
    )


def _pieces_sql(column: str, kind: pa.DataType, *, whole: bool) -> str:
    """Return SQL of a list of numbers, one for each piece of a text or chat; but for the `whole` of
    it, of a text the first piece.
    """
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        spoken = _spoken_sql("m", kind.value_type, ("role", "name"))
        return f"list_transform({column}, lambda m: md5_number_lower(trim({spoken}, {_WHITE})))"
    text = f"trim(regexp_replace({column}, {_FIRST_MARKS}, ''), {_WHITE})"
    for end in (". ", "? ", "! "):
        text = f"replace({text}, '{end}', chr(10))"
    lines = f"string_split({text}, chr(10))" if whole else f"[split_part({text}, chr(10), 1)]"
    bare = f"trim(regexp_replace(x, {_FIRST_MARKS}, ''), {_WHITE} || '.?!')"
    return (
        f"list_transform(list_filter(list_transform({lines}, lambda x: {bare}), "
        "lambda x: x <> ''), lambda x: md5_number_lower(x))"
    )


def _spoken_sql(value: str, kind: pa.DataType, unspoken: tuple[str, ...]) -> str:
    """Return SQL of all texts of a struct but for its `unspoken` members."""
    pieces = []
    for member in kind:
        name = f"{value}.{identifier(member.name)}"
        if member.name in unspoken:
            continue
        if pa.types.is_list(member.type) and pa.types.is_struct(member.type.value_type):
            part = _spoken_sql("p", member.type.value_type, ("type",))
            name = f"array_to_string(list_transform({name}, lambda p: {part}), '')"
        pieces.append(name)
    return f"concat({', '.join(pieces)})" if pieces else "''"


def _leave_out(staged: Staged, items: Blocks) -> None:
    """Take the rows and texts of items out of a staged input, and count them."""
    items = blocks.unique(items)[0]
    for directory in (staged.rows_directory, staged.texts_directory):
        for bucket in range(staged.buckets):
            table = buckets.read_bucket(directory, bucket)
            if table is None:
                continue
            stays = blocks.find_positions(items, buckets.read_blocks(table, "item")) < 0
            if directory == staged.rows_directory:
                staged.left_out[LATER_TURN] += int((~stays).sum())
            if not stays.all():
                buckets.bucket_path(directory, bucket).unlink()
                rest = table.filter(pa.array(stays)) if stays.any() else None
                buckets.write_bucket(directory, bucket, rest)
