"""Format v1 as docs/format.md says it, implemented a second time and compared with what is stored.

The reference below is plain Python over hashlib, hmac, json and AES. It must agree with the page's
vectors, with labelguard's SQL and columns, and with every row that a project keeps and releases.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

import labelguard as lg
from labelguard import block128, canonical
from labelguard.groups import read_groups
from labelguard.keys import KeyRing
from labelguard.labels import Reading
from labelguard.mechanisms.coins import Coins, Purpose
from labelguard.pairs import distinct_pairs
from labelguard.staging import StagingOptions, stage

# ---------------------------------------------------------------- the reference

FLIP, TIE, ROW_KEY, ORDER, TERNARY = 1, 2, 3, 4, 5
HALF = 1 << 63


def encode(value: str | list[Any]) -> bytes:
    """The canonical encoding of a text or a chat."""
    tag, body = (b"t", value) if isinstance(value, str) else (b"c", canonical_json(value))
    data = body.encode()
    return tag + str(len(data)).encode() + b":" + data


def canonical_json(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json_string(value)
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    members = sorted((k, canonical_json(v)) for k, v in value.items())
    kept = [f"{json_string(k)}:{text}" for k, text in members if text != "null"]
    return "{" + ",".join(kept) + "}" if kept else "null"


def json_string(text: str) -> str:
    written = json.dumps(text, ensure_ascii=False)
    return re.sub(r"(\\.)([0-9a-f]{4})?", _upper, written)


def _upper(escape: re.Match[str]) -> str:
    if escape[1] != r"\u":
        return escape[0]
    return escape[0][:2] + escape[0][2:].upper()


def json_number(value: float) -> str:
    """Digits as ECMAScript writes them, without + in the exponent; large whole ones end in .0."""
    if value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + int(exponent)
    if point > 21 or point < -5:
        body = text[0] + ("." + text[1:] if len(text) > 1 else "") + f"e{point - 1}"
    elif point <= 0:
        body = "0." + "0" * -point + text
    elif point >= len(text):
        body = text + "0" * (point - len(text)) + ".0"
    else:
        body = text[:point] + "." + text[point:]
    return "-" * sign + body


def item_hash(prompt: Any, responses: list[Any]) -> bytes:
    sides = b"".join(sorted(map(encode, responses)))
    return hashlib.sha256(b"labelguard/item/1:" + encode(prompt) + sides).digest()


def item_digest(prompt: Any, responses: list[Any]) -> bytes:
    return item_hash(prompt, responses)[:16]


def id_hash(item_id: str) -> bytes:
    return hashlib.sha256(b"labelguard/id/1:" + encode(item_id)).digest()


def id_digest(item_id: str) -> bytes:
    return id_hash(item_id)[:16]


def ranking_digest(ranking_id: str) -> bytes:
    return hashlib.sha256(b"labelguard/ranking/1:" + encode(ranking_id)).digest()[:16]


def question_digest(question: str, item: bytes) -> bytes:
    """Of an item (its whole SHA-256) under a question."""
    return hashlib.sha256(b"labelguard/question/1:" + encode(question) + item).digest()[:16]


def pair_index(first: int, second: int, responses: int) -> int:
    """The place of (first, second), counted from 0, among all pairs in lexicographic order."""
    return list(combinations(range(responses), 2)).index((first, second))


def derive(secret: bytes, purpose: str) -> bytes:
    return hmac.digest(secret, b"labelguard/key/1/" + purpose.encode(), "sha256")


def cbc_mac(key: bytes, *blocks: bytes) -> bytes:
    encryptor = Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor()
    return (encryptor.update(b"".join(blocks)) + encryptor.finalize())[-16:]


def labeler_key(secret: bytes, namespace: str, labeler_id: str) -> bytes:
    return named_key(secret, "labeler-id", namespace, labeler_id)


def group_key(secret: bytes, namespace: str, group_id: str) -> bytes:
    return named_key(secret, "group-id", namespace, group_id)


def named_key(secret: bytes, purpose: str, namespace: str, name: str) -> bytes:
    message = b"".join(
        len(part).to_bytes(8, "big") + part for part in (namespace.encode(), name.encode())
    )
    return hmac.digest(derive(secret, purpose), message, "sha256")[:16]


def draw_block(purpose: int, pair: int, version: int, threshold: int) -> bytes:
    fields = ((1, 1), (purpose, 1), (pair, 2), (version, 4), (threshold, 8))
    return b"".join(value.to_bytes(width, "big") for value, width in fields)


def draw(
    secret: bytes, salt: bytes, item: bytes, purpose: int, pair: int, version: int, threshold: int
) -> bytes:
    return cbc_mac(
        derive(secret, "coin"), salt, item, draw_block(purpose, pair, version, threshold)
    )


def below(output: bytes, threshold: int) -> bool:
    return int.from_bytes(output[:8], "big") < threshold


def salts_of(keys: Path) -> tuple[bytes, dict[bytes, bytes]]:
    """The project secret and every labeler's salt, from the two key files."""
    header = b"labelguard project key v1\n"
    data = (keys / "project.key").read_bytes()
    assert data.startswith(header)
    secret = data.removeprefix(header)
    assert len(secret) == 32
    header = b"labelguard salts v1\n"
    data = (keys / "salts").read_bytes()
    assert data.startswith(header)
    data = data.removeprefix(header)
    tag, body = data[:32], data[32:]
    assert hmac.digest(derive(secret, "salts"), body, "sha256") == tag
    labelers, wrapped = body[: len(body) // 2], body[len(body) // 2 :]
    decryptor = Cipher(algorithms.AES(derive(secret, "salt-wrap")), modes.ECB()).decryptor()
    clear = decryptor.update(wrapped) + decryptor.finalize()
    names = [labelers[at : at + 16] for at in range(0, len(labelers), 16)]
    assert names == sorted(names)
    return secret, {name: clear[16 * at : 16 * at + 16] for at, name in enumerate(names)}


# ---------------------------------------------------------------- the page's vectors

PAGE = Path(__file__).parents[1] / "docs" / "format.md"


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    loaded: dict[str, Any] = json.loads(blocks[-1])
    return loaded


def computed(given: dict[str, Any]) -> dict[str, Any]:
    """The vectors with everything that follows from the inputs computed by the reference."""
    secret, salt = bytes.fromhex(given["project_secret"]), bytes.fromhex(given["salt"])
    item = item_digest(given["item"]["prompt"], given["item"]["responses"])
    named = {"flip": FLIP, "tie": TIE, "row key": ROW_KEY, "order": ORDER, "ternary": TERNARY}
    coins = []
    for coin in given["coins"]:
        fields = (named[coin["purpose"]], coin["pair"], coin["version"], int(coin["threshold"]))
        output = draw(secret, salt, item, *fields)
        coins.append(coin | {"block": draw_block(*fields).hex(), "output": output.hex()})
    return given | {
        "keys": {purpose: derive(secret, purpose).hex() for purpose in given["keys"]},
        "labeler": labeler_key(secret, given["namespace"], given["labeler_id"]).hex(),
        "wrapped_salt": cbc_mac(derive(secret, "salt-wrap"), salt).hex(),
        "encodings": [
            {"value": entry["value"], "encoding": encode(entry["value"]).decode()}
            for entry in given["encodings"]
        ],
        "item": given["item"]
        | {"sorted": [e.decode() for e in sorted(map(encode, given["item"]["responses"]))]}
        | {"digest": item.hex()},
        "item_id": given["item_id"] | {"digest": id_digest(given["item_id"]["value"]).hex()},
        "ranking_id": given["ranking_id"]
        | {"digest": ranking_digest(given["ranking_id"]["value"]).hex()},
        "questions": [
            asked
            | {
                "item": question_digest(
                    asked["question"],
                    item_hash(given["item"]["prompt"], given["item"]["responses"]),
                ).hex(),
                "item_id": question_digest(
                    asked["question"], id_hash(given["item_id"]["value"])
                ).hex(),
            }
            for asked in given["questions"]
        ],
        "group": given["group"]
        | {"pseudonym": group_key(secret, given["namespace"], given["group"]["group_id"]).hex()},
        "pairs": [
            pair | {"pair": pair_index(pair["first"], pair["second"], pair["responses"])}
            for pair in given["pairs"]
        ],
        "coins": coins,
    }


def test_the_reference_gives_the_vectors_of_the_page(vectors: dict[str, Any]) -> None:
    assert computed(vectors) == vectors


def test_the_library_gives_the_vectors_of_the_page(vectors: dict[str, Any], tmp_path: Path) -> None:
    secret, salt = bytes.fromhex(vectors["project_secret"]), bytes.fromhex(vectors["salt"])
    path = tmp_path / "project.key"
    path.write_bytes(b"labelguard project key v1\n" + secret)
    path.chmod(0o600)
    keys = KeyRing(tmp_path)
    labelers = keys.labeler_keys(vectors["namespace"], [vectors["labeler_id"]])
    assert block128.to_hex(labelers[0]) == vectors["labeler"]
    group = {"labeler_id": [vectors["labeler_id"]], "group_id": [vectors["group"]["group_id"]]}
    groups = read_groups(pa.table(group), keys, vectors["namespace"])
    assert block128.to_hex(groups.units[0]) == vectors["group"]["pseudonym"]
    assert np.array_equal(groups.labelers, labelers)
    salts = block128.from_bytes(salt)
    items = block128.from_bytes(bytes.fromhex(vectors["item"]["digest"]))
    coins = Coins(keys.coin_prf(), salts)
    identity = coins.identify(np.zeros(1, np.intp), items)
    for coin in vectors["coins"]:
        purpose = Purpose[coin["purpose"].replace(" ", "_").upper()]
        pair = np.array([coin["pair"]], np.uint16)
        version = np.array([coin["version"]], np.uint32)
        threshold = np.array([int(coin["threshold"])], np.uint64)
        output = bytes.fromhex(coin["output"])
        if purpose is Purpose.ROW_KEY:
            assert block128.to_bytes(coins.row_keys(identity, pair)) == output
        else:
            drawn = coins.draw(purpose, identity, pair, version, threshold)
            assert drawn[0] == int.from_bytes(output[:8], "big")
        if purpose is Purpose.ORDER:
            assert coins.order(identity) == drawn


@pytest.mark.parametrize("named", [True, False])
def test_the_library_gives_the_items_of_questions_on_the_page(
    vectors: dict[str, Any], named: bool, tmp_path: Path
) -> None:
    first, second = vectors["item"]["responses"]
    row = {"prompt": vectors["item"]["prompt"], "response_a": first, "response_b": second}
    row |= {"item_id": vectors["item_id"]["value"]} if named else {}
    expected = {
        entry["question"]: entry["item_id" if named else "item"] for entry in vectors["questions"]
    }
    source = table([row | {"question": question} for question in expected])
    options = StagingOptions(Reading({"question": "question"}, "item", labelled=False), "")
    staged = stage(source, tmp_path / "input", KeyRing.create(tmp_path / "keys"), options)
    found = distinct_pairs(staged)
    digests = [block128.to_hex(item) for item in found.items]
    assert found.questions is not None
    assert dict(zip(found.questions.to_pylist(), digests, strict=True)) == expected
    given = [f"item-17#{question}" for question in found.questions.to_pylist()]
    assert found.ids.to_pylist() == (given if named else digests)


# ---------------------------------------------------------------- canonical JSON in SQL

CONTENT = 'STRUCT("text" VARCHAR, url VARCHAR, size DOUBLE, "ä""\'" BOOLEAN, n HUGEINT)'
CHAT = f'STRUCT("role" VARCHAR, content {CONTENT}[], "Name" VARCHAR, tags VARCHAR[])[]'

texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
finite = st.floats(allow_nan=False, allow_infinity=False)
contents = st.fixed_dictionaries(
    {
        "text": texts,
        "url": texts,
        "size": st.none() | finite | st.integers(-(2**54), 2**54).map(float),
        "ä\"'": st.none() | st.booleans(),
        "n": st.none() | st.integers(-(10**30), 10**30),
    }
)
messages = st.fixed_dictionaries(
    {
        "role": texts,
        "content": st.none() | st.lists(st.none() | contents, max_size=3),
        "Name": texts,
        "tags": st.none() | st.lists(texts, max_size=3),
    }
)


@pytest.fixture(scope="module")
def in_sql() -> Iterator[Callable[[Any, str], str | None]]:
    with duckdb.connect() as connection:

        def run(value: Any, sql_type: str) -> str | None:
            kind = connection.sql(f"SELECT NULL::{sql_type} AS x").types[0]
            encoding = canonical.encoded("x", canonical.content_shape([kind]))
            query = f"SELECT {encoding} FROM (SELECT $1::{sql_type} AS x)"
            found: str | None = connection.execute(query, [value]).fetchall()[0][0]
            return found

        yield run


@settings(deadline=None)
@given(chat=st.lists(messages, min_size=1, max_size=3))
def test_chats_are_encoded_in_sql_as_in_the_reference(
    in_sql: Callable[[Any, str], str | None], chat: list[Any]
) -> None:
    assert in_sql(chat, CHAT) == encode(chat).decode()


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_texts_are_encoded_in_sql_as_in_the_reference(
    in_sql: Callable[[Any, str], str | None], text: str
) -> None:
    assert in_sql(text, "VARCHAR") == encode(text).decode()


def test_empty_contents_have_no_encoding(in_sql: Callable[[Any, str], str | None]) -> None:
    message = {"role": "user", "content": None, "Name": None, "tags": None}
    assert in_sql("", "VARCHAR") is None
    assert in_sql(None, "VARCHAR") is None
    assert in_sql([], CHAT) is None
    assert in_sql([message, None], CHAT) is None
    assert in_sql([message], CHAT) == 'c17:[{"role":"user"}]'


# ---------------------------------------------------------------- what a project keeps


@dataclass(frozen=True)
class Label:
    """One canonical label: `value` is 1, 0 or 2 (tie); `unit` is whose salt is used."""

    unit: bytes
    bucket: int
    prompt: Any
    sides: list[Any]
    value: int
    item: bytes
    pair: int = 0
    item_id: str | None = None


class Stored:
    """A project read without labelguard: its keys, prices, private maps and releases."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.secret, self.salts = salts_of(state / "keys")
        with sqlite3.connect(state / "ledger.sqlite3") as ledger:
            self.thresholds = {
                int(k): int(t) for k, t in ledger.execute("SELECT k, price FROM prices")
            }
            self.capacity = dict(ledger.execute("SELECT labeler, capacity FROM counters"))

    def labeler(self, labeler_id: str) -> bytes:
        return labeler_key(self.secret, "files", labeler_id)

    def row_key(self, label: Label) -> bytes:
        salt = self.salts[label.unit]
        return draw(self.secret, salt, label.item, ROW_KEY, label.pair, 0, 0)

    def value(self, label: Label, version: int, ternary: bool = False) -> int:
        """The released label: randomized response with the permanent coins of this row."""
        threshold = self.threshold(label)

        def coin(purpose: int, price: int) -> bytes:
            salt = self.salts[label.unit]
            return draw(self.secret, salt, label.item, purpose, label.pair, version, price)

        if ternary:
            output = coin(TERNARY, threshold)
            step = 1 + (output[7] & 1) if below(output, threshold) else 0
            return (label.value + step) % 3
        fair = int(below(coin(TIE, HALF), HALF))
        strict = fair if label.value == 2 else label.value
        return strict ^ int(below(coin(FLIP, threshold), threshold))

    def threshold(self, label: Label) -> int:
        return self.thresholds[self.capacity[label.unit]]

    def check(self, release: lg.Release, labels: list[Label], version: int = 0) -> None:
        """Compare a release of these labels, each of them new in it, with the reference."""
        ternary = release.card["privacy"]["ties"] == "ternary"
        maps: dict[bytes, tuple[str, int, int, int]] = {}
        for path in (self.state / "released" / release.id).glob("*.parquet"):
            for row in pq.read_table(path, partitioning=None).to_pylist():
                assert row["row_key"] not in maps
                drawn = (row["version"], row["value"], row["threshold"])
                maps[row["row_key"]] = (path.name, *drawn)
        expected = {}
        rows = []
        for label in labels:
            key, value = self.row_key(label), self.value(label, version, ternary)
            name = f"bucket={label.bucket:02d}.parquet"
            expected[key] = (name, version, value, self.threshold(label))
            if value == 2:
                continue
            change = self.threshold(label) / 2**64
            chosen, rejected = label.sides if value else reversed(label.sides)
            row = {
                "prompt": label.prompt,
                "chosen": chosen,
                "rejected": rejected,
                "item_id": label.item_id or label.item.hex(),
                "label_probability": None,
                "flip_probability": (change / 2) / (1 - change / 2) if ternary else change,
                "residual_flip_estimate": None,
            }
            rows.append((label.item, key, row))
        assert maps == expected
        rows.sort(key=lambda entry: entry[:2])
        assert lg.load(release, "arrow").to_pylist() == [row for _, _, row in rows]


def bucket_of(key: bytes) -> int:
    return key[0] >> 2


def canonical_pair(unit: bytes, prompt: Any, a: Any, b: Any, label: float) -> Label:
    """Sides in canonical order, and the label mapped along."""
    value = 2 if label == 0.5 else int(label)
    if encode(a) > encode(b):
        a, b, value = b, a, value if value == 2 else 1 - value
    return Label(unit, bucket_of(unit), prompt, [a, b], value, item_digest(prompt, [a, b]))


def labels_of(rows: list[dict[str, Any]], stored: Stored) -> list[Label]:
    """Pairs of plain texts as canonical labels."""
    names = ("prompt", "response_a", "response_b", "label")
    return [
        canonical_pair(stored.labeler(row["labeler_id"]), *(row[name] for name in names))
        for row in rows
    ]


def answers() -> list[dict[str, Any]]:
    """40 labels of 8 labelers on 20 pairs, with ties, sides of all lengths in either order."""
    return [
        {
            "labeler_id": f"worker {row % 8}",
            "prompt": f"Question {row // 2}?",
            "response_a": "ä" * (1 + row // 2 % 5),
            "response_b": "b" * (1 + row // 2 % 7),
            "label": (0.0, 1.0, 0.5, 1.0, 0.0)[row % 5],
        }
        for row in range(40)
    ]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize("ties", ["coin", "ternary"])
def test_every_released_pair_follows_from_keys_prices_and_labels(tmp_path: Path, ties: str) -> None:
    project = lg.init(tmp_path)
    release = lg.privatize(table(answers()), epsilon=9, delta=1e-5, ties=ties, project=project)
    stored = Stored(project.state)
    stored.check(release, labels_of(answers(), stored))


def test_a_label_drawn_again_uses_the_coins_of_its_next_version(tmp_path: Path) -> None:
    project = lg.init(tmp_path)
    budget: dict[str, Any] = {"epsilon": 9, "delta": 1e-5, "max_labels_per_labeler": 16}
    lg.privatize(table(answers()), project=project, **budget)
    release = lg.privatize(table(answers()), project=project, again=True, **budget)
    stored = Stored(project.state)
    stored.check(release, labels_of(answers(), stored), version=1)


def test_labels_take_places_in_the_order_of_the_page(tmp_path: Path) -> None:
    project = lg.init(tmp_path)
    places = 3
    release = lg.privatize(
        table(answers()), epsilon=9, delta=1e-5, max_labels_per_labeler=places, project=project
    )
    stored = Stored(project.state)

    def order(label: Label) -> bytes:
        return draw(stored.secret, stored.salts[label.unit], label.item, ORDER, 0, 0, 0)[:8]

    labels = labels_of(answers(), stored)
    by_unit = {label.unit: [row for row in labels if row.unit == label.unit] for label in labels}
    assert {len(own) for own in by_unit.values()} == {5}
    kept = [label for own in by_unit.values() for label in sorted(own, key=order)[:places]]
    stored.check(release, kept)


def test_chats_with_given_ids_follow_too(tmp_path: Path) -> None:
    def chat(role: str, text: str) -> list[dict[str, Any]]:
        return [{"role": role, "content": text, "name": "Ann" if role == "user" else None}]

    rows = [
        {
            "labeler_id": str(row % 3),
            "prompt": chat("user", f"{row}\u0001\n"),
            "chosen": chat("assistant", "yes \u2028" + "!" * row),
            "rejected": chat("assistant", "no" + "?" * 5),
            "item_id": f"item {row}",
            "tie": row % 4 == 3,
        }
        for row in range(12)
    ]
    project = lg.init(tmp_path)
    release = lg.privatize(table(rows), epsilon=9, delta=1e-5, project=project)
    stored = Stored(project.state)
    labels = []
    for row in rows:
        sides = (row["prompt"], row["chosen"], row["rejected"])
        unit, item_id = stored.labeler(row["labeler_id"]), row["item_id"]
        label = canonical_pair(unit, *sides, 0.5 if row["tie"] else 1.0)
        labels.append(replace(label, item=id_digest(item_id), item_id=item_id))
    stored.check(release, labels)


def test_rankings_follow_too(tmp_path: Path) -> None:
    rows = [
        {
            "labeler_id": f"judge {row % 2}",
            "prompt": f"Rank {row}",
            "responses": [f"answer {'x' * ((row + n) % 5)} {n}" for n in range(4)],
            "ranks": [(row + 2 * n) % 3 for n in range(4)],
        }
        for row in range(6)
    ]
    project = lg.init(tmp_path)
    release = lg.privatize(table(rows), epsilon=9, delta=1e-5, project=project)
    stored = Stored(project.state)
    labels = []
    for row in rows:
        item = item_digest(row["prompt"], row["responses"])
        ranked = sorted(zip(row["responses"], row["ranks"], strict=True), key=_by_encoding)
        for pair, ((a, rank_a), (b, rank_b)) in enumerate(combinations(ranked, 2)):
            value = 2 if rank_a == rank_b else int(rank_a < rank_b)
            unit = stored.labeler(row["labeler_id"])
            label = Label(unit, bucket_of(unit), row["prompt"], [a, b], value, item, pair)
            labels.append(label)
    stored.check(release, labels)


def _by_encoding(ranked: tuple[str, float]) -> bytes:
    return encode(ranked[0])


@pytest.mark.parametrize("named", [True, False])
def test_single_labels_as_units_follow_too(tmp_path: Path, named: bool) -> None:
    rows = answers()
    if not named:
        rows = [{name: row[name] for name in list(row)[1:]} for row in rows]
    project = lg.init(tmp_path)
    release = lg.privatize(table(rows), epsilon=2, delta=0, unit="item", project=project)
    stored = Stored(project.state)
    key = derive(stored.secret, "unit")
    labels = []
    seen: dict[bytes, int] = {}
    for label in labels_of(answers(), stored):
        labeler = label.unit if named else bytes(16)
        unit = cbc_mac(key, labeler, label.item, bytes(16))
        bucket = bucket_of(unit)
        if not named:
            nth = seen[label.item] = seen.get(label.item, -1) + 1
            unit = cbc_mac(key, unit, label.item, nth.to_bytes(16, "big"))
        labels.append(replace(label, unit=unit, bucket=bucket))
    assert set(stored.salts) == {label.unit for label in labels}
    stored.check(release, labels)
