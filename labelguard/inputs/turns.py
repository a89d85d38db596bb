"""Prompts that contain answers: where a conversation goes on with the response that was chosen, the
next turn's prompt publishes the choice, whatever the noise on labels.

It shows in public columns: a prompt begins with another item's prompt and goes on with one of its
responses, of chats by their messages, of texts apart from white space and names of roles. Both
responses are looked at alike, and no label is read. Across releases a project keeps keyed digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelguard.budget.label_values import Turns
from labelguard.errors import InvalidLabels
from labelguard.inputs.staged import Staged
from labelguard.keys.keyring import KeyRing
from labelguard.processes import count_cores
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.executor import run_ahead
from labelguard.text import pluralize

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
# What parts words, of any script, or follows a name.
_BLANKS = r"\s\p{Z}:"
_FIRST_MARKS = rf"(?i)^\s*(?:(?:{_NAMED}|{_TEMPLATES})\s*)+"
# Characters of a line, and bytes at both ends of a piece, that are compared.
_LONGEST, _HEAD, _TAIL = 120, 128, 64
# Bytes of texts that are worth a call: each one compiles expressions anew.
_ENOUGH = 1 << 26
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
    later = [np.zeros((0, 2), np.uint64)]
    continued = list(later)
    if _may_continue(staged):
        if staged.chat:
            pairs = _digest_pairs(staged, keys)
            later.append(pairs.find_containing(pairs.responses))
        else:
            later.append(_find_continuing_texts(staged))
    if published and len(published.responses):
        pairs = _digest_pairs(staged, keys)
        later.append(pairs.find_containing(published.responses))
        continued.append(pairs.find_contained(published.prompts))
    items = blocks.unique(np.concatenate(later))[0]
    others = blocks.unique(np.concatenate(continued))[0]
    return items, others[blocks.find_positions(items, others) < 0]


def write_published(directory: Path, staged: Staged, keys: KeyRing, known: ReleasedTurns) -> None:
    """Write digests of a staged input that are not known into the directory of a private map."""
    pairs = _digest_pairs(staged, keys)
    # Sorted: their order must not be that of the input.
    new = {}
    for name in _NAMES:
        every = np.unique(getattr(pairs, name))
        new[name] = every[~np.isin(every, getattr(known, name))]
    np.savez(directory / FILE, responses=new["responses"], prompts=new["prompts"])


def _may_continue(staged: Staged) -> bool:
    """Return whether any prompt is longer than the shortest one."""
    measure = pc.list_value_length if staged.chat else pc.binary_length
    lengths = [pc.min_max(measure(table["prompt"])).as_py() for table in _read_texts(staged)]
    return bool(max(one["max"] for one in lengths) > min(one["min"] for one in lengths))


def _read_texts(staged: Staged) -> Iterator[pa.Table]:
    """Yield the texts of whole buckets, of several at once where these are small."""
    waiting, size = [], 0
    for bucket in range(staged.buckets):
        if (table := buckets.read_bucket(staged.texts_directory, bucket)) is not None:
            waiting.append(table)
            size += table.nbytes
        if waiting and (size > _ENOUGH or bucket == staged.buckets - 1):
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, size = [], 0


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
    table = pa.concat_tables(_read_pairs(staged, ["prompt"]))
    prompts, items = table["prompt"], buckets.read_blocks(table, "item")
    bare = pc.replace_substring_regex(prompts, _FIRST_MARKS, "", max_replacements=1)
    begun = _find_beginnings(pc.utf8_trim_whitespace(bare))
    if not begun.any():
        return items[:0]
    suspects = blocks.unique(items[begun])[0]
    pairs = pa.concat_tables(_read_pairs(staged, _TEXTS, suspects))
    sides = pa.concat_tables(
        pairs.select(["prompt", side]).rename_columns(["prompt", "side"]) for side in _SIDES
    )
    sides = sides.filter(pc.match_substring_regex(sides["side"], rf"[^{_BLANKS}]"))
    answered = pc.binary_join_element_wise(sides["prompt"], sides["side"], "\n")
    least = pc.min(pc.binary_length(_squeeze(answered)))
    later = np.flatnonzero(pc.greater_equal(pc.binary_length(prompts), least))
    for form in (_squeeze, _words):  # the first is the faster one
        later = later[_begin_with(form(prompts.take(later)), form(answered))]
    return items[later]


def _find_beginnings(texts: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return which texts another one begins with and goes on after, (n,)."""
    whole = texts.cast(pa.large_string()).combine_chunks()
    order = pc.sort_indices(whole).to_numpy()  # the next one begins with it, if any does
    one, other = order[:-1], order[1:]
    ends = np.frombuffer(whole.buffers()[1], np.int64)[: len(whole) + 1]
    data = np.frombuffer(whole.buffers()[2] or b"", np.uint8)
    length = np.diff(ends)
    shorter = length[one] < length[other]
    one, other = one[shorter], other[shorter]
    for part in range(1, 9):  # a few bytes tell nearly all that differ
        place = np.maximum(length[one] * part // 8 - 1, 0)
        of_one = np.minimum(ends[one] + place, len(data) - 1)  # an empty text may be the last
        same = (data[of_one] == data[ends[other] + place]) | (length[one] == 0)
        one, other = one[same], other[same]
    texts_of = (whole.take(pa.array(rows)).to_pylist() for rows in (one, other))
    begin = [text.startswith(start) for start, text in zip(*texts_of, strict=True)]
    starts = whole.take(pa.array(one[np.array(begin, bool)]))
    return pc.is_in(whole, value_set=starts.unique()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _squeeze(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts without names of roles, blanks and ends of lines."""
    return pc.replace_substring_regex(texts, rf"{_MARKS}|[{_BLANKS}]+", "")


def _words(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts without names of roles, each word with one blank after it."""
    plain = pc.replace_substring_regex(texts, rf"(?:{_MARKS}|[{_BLANKS}]+)+", " ")
    return pc.binary_join_element_wise(pc.utf8_trim_whitespace(plain), " ", "")


def _begin_with(texts: pa.ChunkedArray, beginnings: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return which texts begin with one of the beginnings, (n,).

    By one sort: a text has those beginnings that are before it and whose end is not.
    """
    first, count = beginnings.unique(), len(texts)
    step = np.repeat([1, -1, 0], [len(first), len(first), count]).astype(np.int8)
    ends = pc.binary_join_element_wise(first, _LAST, "")
    every = pa.chunked_array([first, ends, *texts.chunks])
    place = pc.sort_indices(
        pa.table({"text": every, "last": step == 0}),
        sort_keys=[("text", "ascending"), ("last", "ascending")],
    ).to_numpy()
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


def _digest_pairs(staged: Staged, keys: KeyRing) -> _Digests:
    """Return the digests of a staged input: sums over pieces of a keyed function of its place.

    Pieces are messages of a chat, or lines and turns of a text; of a response in text the first.
    """
    tables, cores = _read_pairs(staged, _TEXTS), count_cores()
    with ThreadPoolExecutor(cores) as pool:
        parts = list(run_ahead(pool, cores, partial(_digest_table, keys=keys), tables))
    before = np.cumsum([0, *(len(part.items) for part in parts)])
    moved = [
        replace(part, prompt_of=part.prompt_of + start, response_of=part.response_of + start)
        for part, start in zip(parts, before, strict=False)
    ]
    columns = ([getattr(part, one.name) for part in moved] for one in fields(_Digests))
    return _Digests(*map(np.concatenate, columns))


def _digest_table(table: pa.Table, keys: KeyRing) -> _Digests:
    def digest(
        column: str, start: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """Return the sum up to each piece, and which pair it is of; places begin at `start`."""
        pieces, of = _split(table[column], first_line=column != "prompt")
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


def _to_numbers(texts: pa.LargeBinaryArray) -> dict[str, NDArray[np.uint64]]:
    """Return numbers that tell texts apart: their first bytes, their last ones, their length."""
    length = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    columns = {"turn length": length.astype(np.uint64)}
    for end, cut in {"first": (0, _HEAD), "last": (-_TAIL, None)}.items():
        width = abs(cut[1] or cut[0])
        part = pc.binary_slice(texts, *cut).view(pa.large_string())  # pads count bytes
        data = pc.ascii_rpad(part, width, "\0").buffers()[2] or b""
        words = np.frombuffer(data, "<u8", len(texts) * width // 8).reshape(-1, width // 8)
        columns |= {f"turn {end} {n:02}": words[:, n] for n in range(width // 8)}
    return columns


def _split(
    texts: pa.ChunkedArray, *, first_line: bool
) -> tuple[pa.LargeBinaryArray, NDArray[np.intp]]:
    """Return the pieces of texts or chats, none of them blank, and the row of each, ascending."""
    chat, count = pa.types.is_list(texts.type), np.ones(len(texts), np.int64)
    if first_line and not chat:
        texts = pc.utf8_slice_codeunits(texts, 0, 2 * _LONGEST)
        texts = pc.utf8_trim_whitespace(
            pc.replace_substring_regex(texts, _FIRST_MARKS, "", max_replacements=1)
        )
        pieces = pc.list_element(pc.split_pattern(texts, "\n", max_splits=1), 0)
    else:
        if not chat:
            texts = pc.split_pattern(pc.replace_substring_regex(texts, _MARKS, "\n"), "\n")
        count = _measure_lists(texts)
        pieces = pc.list_flatten(texts)
        if chat:
            pieces = _speak(pieces.combine_chunks(), ("role", "name"))
    pieces = pc.utf8_trim_whitespace(pieces)
    if not chat:  # what was cut off may begin with a blank
        pieces = pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(pieces, 0, _LONGEST))
    there = pc.greater(pc.binary_length(pieces), 0)
    pieces = pa.chunked_array(pieces.filter(there)).cast(pa.large_binary()).combine_chunks()
    return pieces, np.repeat(np.arange(len(count)), count)[there.to_numpy(zero_copy_only=False)]


def _measure_lists(lists: pa.ChunkedArray) -> NDArray[np.int64]:
    length = pc.fill_null(pc.list_value_length(lists), 0)
    return length.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _speak(values: pa.StructArray, silent: tuple[str, ...]) -> pa.StringArray:
    """Return all texts of each struct but those of its `silent` members."""
    pieces = [pa.nulls(len(values), pa.string())]
    for member, column in zip(values.type, values.flatten(), strict=True):
        if member.name in silent:
            continue
        if pa.types.is_list(member.type):
            ends = np.cumsum([0, *_measure_lists(column)], dtype=np.int32)
            parts = _speak(column.flatten(), ("type",))
            column = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), parts), "")
        pieces.append(column)
    return pc.binary_join_element_wise(*pieces, "", null_handling="replace")


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
