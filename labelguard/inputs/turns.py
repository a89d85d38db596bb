"""Prompts that contain answers: where a conversation goes on with the response that was chosen, the
next turn's prompt publishes the choice, whatever the noise on labels.

It shows in public columns: a prompt begins with another item's prompt and goes on with one of its
responses, of chats by their messages, of texts apart from white space and names of roles. Both
responses are looked at alike, and no label is read. Across releases a project keeps keyed digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelguard.budget.label_values import Turns
from labelguard.errors import InvalidLabels
from labelguard.inputs import readers
from labelguard.inputs.readers import identifier
from labelguard.inputs.staged import Staged
from labelguard.keys.keyring import KeyRing
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.text import pluralize

if TYPE_CHECKING:
    import polars as pl

# Why rows are left out under `--turns first`.
LATER_TURN = "prompt with an earlier response (--turns first)"
# The file of a private map that has the digests of what its release published.
FILE = "_turns.npz"
_SIDES = ("first", "second")
_TEXTS = ("prompt", *_SIDES)
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
_MARKS = rf"(?im)^[ \t]*(?:{_NAMED})|{_TEMPLATES}"
_FIRST_MARKS = rf"(?i)^\s*(?:(?:{_NAMED}|{_TEMPLATES})\s*)+"
# Characters of a line, and bytes of a piece, that are compared one by one.
_LONGEST, _HEAD = 120, 128
# A text that no text with the same beginning comes after.
_LAST = chr(0x10FFFF)


@dataclass(frozen=True)
class ReleasedTurns:
    """Keyed digests of what earlier releases published, sorted: of each prompt with each of its
    `responses`, and of all that `prompts` begin with.
    """

    responses: NDArray[np.uint64]
    prompts: NDArray[np.uint64]

    @classmethod
    def read(cls, maps: Iterable[Path]) -> ReleasedTurns:
        """Return what the private maps in these directories hold; older ones have no such file."""
        parts = [np.load(path / FILE) for path in maps if (path / FILE).exists()]
        none = np.zeros(0, np.uint64)
        return cls(*(np.unique(np.concatenate([none, *(p[n] for p in parts)])) for n in _NAMES))


_NAMES = ("responses", "prompts")


def check_turns(
    staged: Staged, turns: Turns, keys: KeyRing, published: ReleasedTurns | None = None
) -> None:
    """Leave out items of which a prompt tells the choice (`first`), or raise `InvalidLabels`.

    Nothing is looked for where conversations were declared to go on independently of choices.
    """
    if turns == "independent" or not staged.rows:
        return
    if turns == "stop":
        if problem := explain_revealing_items(staged, keys, published):
            raise InvalidLabels(problem)
        return
    items = np.concatenate(_find_revealing_items(staged, keys, published))
    if answered := len(items):
        _leave_out(staged, items)
        if not any(
            buckets.bucket_path(staged.rows_directory, b).stat().st_size
            for b in range(staged.buckets)
        ):
            raise InvalidLabels(f"--turns first leaves nothing: it leaves {answered:,} items out")


def explain_revealing_items(
    staged: Staged, keys: KeyRing, published: ReleasedTurns | None = None
) -> str | None:
    """Return why items cannot be released, and the two ways out; None if all of them can."""
    if not staged.rows:
        return None
    later, continued = map(len, _find_revealing_items(staged, keys, published))
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


def _find_revealing_items(
    staged: Staged, keys: KeyRing, published: ReleasedTurns | None = None
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
                later.append(_find_continuing_texts(staged))
        if published and len(published.responses):
            pairs = _digest_pairs(staged, keys, connection)
            later.append(pairs.find_containing(published.responses))
            continued.append(pairs.find_contained(published.prompts))
    items = blocks.unique(np.concatenate(later))[0]
    others = blocks.unique(np.concatenate(continued))[0]
    return items, others[blocks.find_positions(items, others) < 0]


def write_published(directory: Path, staged: Staged, keys: KeyRing, known: ReleasedTurns) -> None:
    """Write digests of a staged input that are not known into the directory of a private map."""
    with readers.connect(staged.directory / "turns") as connection:
        pairs = _digest_pairs(staged, keys, connection)
    # Sorted: their order must not be that of the input.
    new = {name: np.setdiff1d(getattr(pairs, name), getattr(known, name)) for name in _NAMES}
    np.savez(directory / FILE, responses=new["responses"], prompts=new["prompts"])


def _may_continue(staged: Staged) -> bool:
    """Return whether any prompt is longer than the shortest one."""
    measure = pc.list_value_length if staged.chat else pc.binary_length
    lengths = [pc.min_max(measure(table["prompt"])).as_py() for table in _read_texts(staged)]
    return bool(max(one["max"] for one in lengths) > min(one["min"] for one in lengths))


def _read_texts(staged: Staged) -> Iterator[pa.Table]:
    for bucket in range(staged.buckets):
        if (table := buckets.read_bucket(staged.texts_directory, bucket)) is not None:
            yield table


def _read_pairs(
    staged: Staged, names: Sequence[str], items: Blocks | None = None
) -> Iterator[pa.Table]:
    """Yield columns of the texts of all distinct pairs, or of those of some items (sorted)."""
    for table in _read_texts(staged):
        item = blocks.unique(buckets.read_blocks(table, "item"))[1].astype(np.int64)
        if "pair" in table.column_names and len(names) > 1:
            item = item << 16 | buckets.read_column(table, "pair").astype(np.int64)
        rows = np.sort(np.unique(item, return_index=True)[1])
        if items is not None:
            whose = buckets.read_blocks(table, "item").take(rows, axis=0)
            rows = rows[blocks.find_positions(items, whose) >= 0]
        columns = table.select([*names, "item_hi", "item_lo"])
        yield columns if len(rows) == len(table) else buckets.take_rows(columns, rows)


def _find_continuing_texts(staged: Staged) -> Blocks:
    """Return the items whose prompt, a text, begins with that of another and a response to it."""
    import polars as pl

    table = pa.concat_tables(_read_pairs(staged, ["prompt"]))
    prompts, items = pl.Series(table["prompt"]), buckets.read_blocks(table, "item")
    bare = prompts.str.replace(_FIRST_MARKS, "").str.strip_chars()
    ordered = bare.sort()  # a text that others begin with is followed by one of them
    before = ordered.shift(1)
    following = pl.DataFrame({"text": ordered, "before": before})
    begun = following.filter(
        pl.col("text") != pl.col("before"), pl.col("text").str.starts_with(pl.col("before"))
    )["before"].unique()
    if not len(begun):
        return items[:0]
    suspects = blocks.unique(items[bare.is_in(begun.implode()).to_numpy()])[0]
    pairs = pl.DataFrame(pa.concat_tables(_read_pairs(staged, _TEXTS, suspects)))
    sides = pl.concat(pairs.select("prompt", side=side) for side in _SIDES)
    sides = sides.filter(sides["side"].str.contains(r"[^\s:]"))
    answered = sides["prompt"] + "\n" + sides["side"]
    least = _squeeze(answered).str.len_bytes().min()
    later = np.flatnonzero((prompts.str.len_bytes() >= least).to_numpy())
    for form in (_squeeze, _words):  # the first is the faster one
        later = later[_begin_with(form(prompts[later]), form(answered))]
    return items[later]


def _squeeze(texts: pl.Series) -> pl.Series:
    """Return texts without names of roles, blanks and ends of lines."""
    texts = texts.str.replace_all(_MARKS, "")
    for sign in (" ", "\n", "\t", "\r", ":"):
        texts = texts.str.replace_all(sign, "", literal=True)
    return texts


def _words(texts: pl.Series) -> pl.Series:
    """Return texts without names of roles, each word with one blank after it."""
    plain = texts.str.replace_all(_MARKS, " ").str.replace_all(r"[\s:]+", " ")
    return plain.str.strip_chars() + " "


def _begin_with(texts: pl.Series, beginnings: pl.Series) -> NDArray[np.bool_]:
    """Return which texts begin with one of the beginnings, (n,).

    By one sort: a text has those beginnings that are before it and whose end is not.
    """
    import polars as pl

    first, count = beginnings.unique(), len(texts)
    step = np.repeat([1, -1, 0], [len(first), len(first), count]).astype(np.int8)
    every = pl.concat([first, first + _LAST, texts])
    order = pl.DataFrame({"text": every, "last": step == 0}).select(pl.arg_sort_by("text", "last"))
    place = order.to_series().to_numpy()
    depth = np.empty(len(step), np.int64)
    depth[place] = np.cumsum(step[place], dtype=np.int64)
    begins: NDArray[np.bool_] = depth[-count:] > 0 if count else np.zeros(0, bool)
    return begins


@dataclass(frozen=True)
class _Digests:
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


def _digest_pairs(staged: Staged, keys: KeyRing, connection: duckdb.DuckDBPyConnection) -> _Digests:
    """Return the digests of a staged input: sums over pieces of a keyed function of its place.

    Pieces are messages of a chat, or lines and turns of a text; of a response in text the first.
    """
    parts = [_digest_bucket(table, keys, connection) for table in _read_pairs(staged, _TEXTS)]
    before = np.cumsum([0, *(len(part.items) for part in parts)])
    moved = [
        replace(part, prompt_of=part.prompt_of + start, response_of=part.response_of + start)
        for part, start in zip(parts, before, strict=False)
    ]
    columns = ([getattr(part, one.name) for part in moved] for one in fields(_Digests))
    return _Digests(*map(np.concatenate, columns))


def _digest_bucket(
    table: pa.Table, keys: KeyRing, connection: duckdb.DuckDBPyConnection
) -> _Digests:
    def digest(
        column: str, start: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """Return the sum up to each piece, and which pair it is of; places begin at `start`."""
        pieces, of = _split(table, column, connection)
        before = np.searchsorted(of, of)
        place = np.arange(len(of)) - before + start[of]
        value = keys.digest_rows(_to_numbers(pieces) | {"place in turns": place})[:, 0]
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(value, dtype=np.uint64)])
        return total[1:] - total[before], of

    prompts, prompt_of = digest("prompt", np.zeros(len(table), np.int64))
    whole = np.zeros(len(table), np.uint64)
    whole[prompt_of] = prompts  # the last of each stays
    sides = [digest(side, np.bincount(prompt_of, minlength=len(table))) for side in _SIDES]
    last = [np.append(of[1:] != of[:-1], True)[: len(of)] for _, of in sides]
    response_of = np.concatenate([of[at] for (_, of), at in zip(sides, last, strict=True)])
    responses = np.concatenate([sums[at] for (sums, _), at in zip(sides, last, strict=True)])
    items = buckets.read_blocks(table, "item")
    return _Digests(items, prompts, prompt_of, responses + whole[response_of], response_of)


def _to_numbers(pieces: pl.Series) -> dict[str, NDArray[np.uint64]]:
    """Return numbers that tell texts apart: their first bytes, their length, the sum of all."""
    texts = pieces.to_arrow().cast(pa.large_binary())
    size = _HEAD
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[: ends[-1]]
    heads = np.lib.stride_tricks.sliding_window_view(
        np.append(data, np.zeros(size, np.uint8)), size
    )
    length = np.diff(ends)
    words = np.where(np.arange(size) < length[:, None], heads[ends[:-1]], 0).astype(np.uint8)
    columns = {f"turn {n:02}": words.view("<u8")[:, n] for n in range(size // 8)}
    total = np.add.reduceat(data, ends[:-1], dtype=np.uint64) if len(texts) else length
    return columns | {"turn length": length.astype(np.uint64), "turn sum": total.astype(np.uint64)}


def _split(
    table: pa.Table, column: str, connection: duckdb.DuckDBPyConnection
) -> tuple[pl.Series, NDArray[np.intp]]:
    """Return the pieces of a column, none of them blank, and the row of each, ascending."""
    import polars as pl

    kind = table.schema.field(column).type
    if pa.types.is_list(kind):
        spoken = _spoken_sql("m", kind.value_type, ("role", "name"))
        sql = f"list_transform({column}, lambda m: {spoken}) AS pieces"
        lists = pl.Series(connection.from_arrow(table).project(sql).to_arrow_table()["pieces"])
    elif column == "prompt":
        lists = pl.Series(table[column]).str.replace_all(_MARKS, "\n").str.split("\n")
    else:
        begin = pl.Series(table[column]).str.slice(0, 2 * _LONGEST).str.replace(_FIRST_MARKS, "")
        lists = begin.str.strip_chars().str.extract_all(rf"^[^\n]{{1,{_LONGEST}}}")
    rows = np.repeat(np.arange(len(lists)), lists.list.len().fill_null(0).to_numpy())
    pieces = lists.explode(empty_as_null=False).str.strip_chars()
    if not pa.types.is_list(kind):
        pieces = pieces.str.slice(0, _LONGEST)
    there = (pieces.str.len_bytes() > 0).fill_null(value=False)
    return pieces.filter(there), rows[there.to_numpy()]


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
