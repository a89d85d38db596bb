"""Format v1 as docs/format.md says it, implemented a second time and compared with what is stored.

The reference below is plain Python over hashlib, hmac, json and AES. It must agree with the page's
vectors, with labelguard's SQL and columns, and with every row that a project keeps and releases.
"""

import hashlib
import hmac
import json
import operator
import re
import sqlite3
import unicodedata
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, combinations
from math import comb
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
from support import world
from support.releases import make_release

import labelguard as lg
from labelguard.accounting.blocks import Block
from labelguard.inputs import canonical, chats, turns
from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import find_distinct_pairs
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import Coins, KeyRing
from labelguard.project import erasure
from labelguard.project.private_map import PrivateMap
from labelguard.storage import blocks as block128

# ---------------------------------------------------------------- the reference

ROW_KEY, ORDER = 1, 2
CHANGES, TIE, COIN_ORDER = 1, 2, 3


def encode(value):
    """The canonical encoding of a text or a chat."""
    tag, body = (b"t", value) if isinstance(value, str) else (b"c", canonical_json(value))
    data = body.encode()
    return tag + str(len(data)).encode() + b":" + data


def canonical_json(value):
    if isinstance(value, str):
        return json_string(value)
    if isinstance(value, list):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    members = sorted((k, v) for k, v in value.items() if v is not None)
    return "{" + ",".join(f"{json_string(k)}:{canonical_json(v)}" for k, v in members) + "}"


def json_string(text):
    written = json.dumps(text, ensure_ascii=False)
    return re.sub(r"(\\.)([0-9a-f]{4})?", _upper, written)


def _upper(escape):
    if escape[1] != r"\u":
        return escape[0]
    return escape[0][:2] + escape[0][2:].upper()


def item_hash(prompt, responses):
    sides = b"".join(sorted(map(encode, responses)))
    return hashlib.sha256(b"labelguard/item/1:" + encode(prompt) + sides).digest()


def item_digest(prompt, responses):
    return item_hash(prompt, responses)[:16]


def id_hash(item_id):
    return hashlib.sha256(b"labelguard/id/1:" + encode(item_id)).digest()


def id_digest(item_id):
    return id_hash(item_id)[:16]


def ranking_digest(ranking_id):
    return hashlib.sha256(b"labelguard/ranking/1:" + encode(ranking_id)).digest()[:16]


def question_digest(question, item):
    """Of an item (its whole SHA-256) under a question."""
    return hashlib.sha256(b"labelguard/question/1:" + encode(question) + item).digest()[:16]


def pair_index(first, second, responses):
    """The place of (first, second), counted from 0, among all pairs in lexicographic order."""
    return list(combinations(range(responses), 2)).index((first, second))


def derive(secret, purpose):
    return hmac.digest(secret, b"labelguard/key/1/" + purpose.encode(), "sha256")


def cbc_mac(key, *blocks):
    encryptor = Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor()
    return (encryptor.update(b"".join(blocks)) + encryptor.finalize())[-16:]


def labeler_key(secret, namespace, labeler_id):
    return named_key(secret, "labeler-id", namespace, labeler_id)


def group_key(secret, namespace, group_id):
    return named_key(secret, "group-id", namespace, group_id)


def named_key(secret, purpose, namespace, name):
    message = b"".join(
        len(part).to_bytes(8, "big") + part for part in (namespace.encode(), name.encode())
    )
    return hmac.digest(derive(secret, purpose), message, "sha256")[:16]


def name_block(purpose, pair):
    return bytes([1, purpose]) + pair.to_bytes(2, "big") + bytes(12)


def row_key(secret, author, item, pair=0):
    return cbc_mac(derive(secret, "row"), author, item, name_block(ROW_KEY, pair))


def order_key(secret, author, item):
    return cbc_mac(derive(secret, "row"), author, item, name_block(ORDER, 0))[:8]


def coin_block(purpose, counter=0):
    return bytes([3, purpose]) + bytes(6) + counter.to_bytes(8, "big")


def coin(nonce, purpose, key, counter=0):
    return cbc_mac(nonce, coin_block(purpose, counter), key)


def coin_number(nonce, purpose, key):
    return int.from_bytes(coin(nonce, purpose, key), "big")


def most_changes(threshold, labels, letters):
    """The number t of a block."""

    def total(t):
        return _weights(threshold, labels, letters, t)[labels]

    t = 0
    while (labels - 1 - t) * (letters - 1) * total(t) > (t + 1) * total(t + 1):
        t += 1
    return t


def _weights(threshold, labels, letters, t):
    """The weights of the answers with at most j changes, for every j."""
    low = threshold + 1
    each = [low + (2**64 - 2 * low) * (j <= t) for j in range(labels + 1)]
    answers = [comb(labels, j) * (letters - 1) ** j for j in range(labels + 1)]
    return [*accumulate(map(operator.mul, each, answers))]


def change_limits(threshold, labels, letters=2):
    """The bytes of a number that is drawn, and the least ones that say more than j changes."""
    *weights, total = _weights(threshold, labels, letters, most_changes(threshold, labels, letters))
    size = -(-(total.bit_length() + 128) // 128) * 16
    return size, [-(-weight * 2 ** (8 * size) // total) for weight in weights]


def flip_probability(threshold, labels):
    """γ = (1 − c1)/2."""
    t = most_changes(threshold, labels, 2)
    total = _weights(threshold, labels, 2, t)[labels]
    ways = comb(labels - 1, t)
    return (1 - float(Fraction((2**64 - 2 * (threshold + 1)) * ways, total))) / 2


def answer(nonce, threshold, keys, labels):
    """The released labels of a block: `labels` are 0, 1 or 2 (tie)."""
    size, limits = change_limits(threshold, len(keys))
    drawn = b"".join(coin(nonce, CHANGES, keys[0], counter) for counter in range(size // 16))
    changes = sum(limit <= int.from_bytes(drawn, "big") for limit in limits)
    places = sorted(range(len(keys)), key=lambda row: coin(nonce, COIN_ORDER, keys[row]))
    released = []
    for row, (key, label) in enumerate(zip(keys, labels, strict=True)):
        true = coin_number(nonce, TIE, key) % 2 if label == 2 else label
        released.append(true ^ (places.index(row) < changes))
    return released


def normal_form(words):
    composed = unicodedata.normalize("NFKC", bare(words))
    return unicodedata.normalize("NFKC", bare(composed.lower().upper()))


def bare(words):
    return "".join(filter(_visible, words))


def _visible(character):
    return unicodedata.category(character)[0] not in "ZC" and character not in IGNORABLE


IGNORABLE = set(
    "\u2800\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)


def content_digest(sides):
    """Of what is compared, from the words of prompt and response of every side."""
    distinct = {hashlib.sha256(normal_form(words).encode()).hexdigest() for words in sides}
    return hashlib.sha256("".join(sorted(distinct)).encode()).digest()[:16]


def content_unit(secret, sides):
    return cbc_mac(derive(secret, "unit"), content_digest(sides))


def map_digest(secret, release, files):
    lines = [f"{name} {hashlib.sha256(data).hexdigest()}" for name, data in sorted(files.items())]
    message = "\n".join([release, *lines]).encode()
    return hmac.digest(derive(secret, "map"), message, "sha256").hex()


def secret_of(keys):
    header = b"labelguard project key v1\n"
    data = (keys / "project.key").read_bytes()
    assert data.startswith(header) and len(data) == len(header) + 32
    return data.removeprefix(header)


# ---------------------------------------------------------------- the page's vectors

VECTORS = Path(__file__).parents[2] / "docs" / "format-v1.json"


@pytest.fixture(scope="module")
def vectors():
    loaded: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return loaded


def compute(given):
    """The vectors with everything that follows from the inputs computed by the reference."""
    secret, nonce = bytes.fromhex(given["project_secret"]), bytes.fromhex(given["nonce"])
    item = item_digest(given["item"]["prompt"], given["item"]["responses"])
    whole = item_hash(given["item"]["prompt"], given["item"]["responses"])
    named = id_hash(given["item_id"]["value"])
    files = {name: text.encode() for name, text in given["map"]["files"].items()}
    labeler = labeler_key(secret, given["namespace"], given["labeler_id"])
    first_key = row_key(secret, labeler, item)
    return given | {
        "keys": {purpose: derive(secret, purpose).hex() for purpose in given["keys"]},
        "labeler": labeler.hex(),
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
            | {"item": question_digest(asked["question"], whole).hex()}
            | {"item_id": question_digest(asked["question"], named).hex()}
            for asked in given["questions"]
        ],
        "group": given["group"]
        | {"pseudonym": group_key(secret, given["namespace"], given["group"]["group_id"]).hex()},
        "pairs": [
            pair | {"pair": pair_index(pair["first"], pair["second"], pair["responses"])}
            for pair in given["pairs"]
        ],
        "row_keys": [
            row | {"row_key": row_key(secret, labeler, item, row["pair"]).hex()}
            for row in given["row_keys"]
        ],
        "order": order_key(secret, labeler, item).hex(),
        "coins": [
            drawn
            | {"block": coin_block(drawn["purpose"], drawn["counter"]).hex()}
            | {"coin": coin(nonce, drawn["purpose"], first_key, drawn["counter"]).hex()}
            for drawn in given["coins"]
        ],
        "blocks": [
            law
            | {"most_changes": most_changes(int(law["threshold"]), law["labels"], law["letters"])}
            | {"limits": _hex_limits(int(law["threshold"]), law["labels"], law["letters"])}
            for law in given["blocks"]
        ],
        "contents": [
            content
            | {"normal_forms": [normal_form(words) for words in content["sides"]]}
            | {"digest": content_digest(content["sides"]).hex()}
            | {"unit": content_unit(secret, content["sides"]).hex()}
            for content in given["contents"]
        ],
        "map": given["map"] | {"digest": map_digest(secret, given["map"]["release"], files)},
    }


def _hex_limits(*law):
    size, limits = change_limits(*law)
    return [limit.to_bytes(size, "big").hex() for limit in limits]


def test_the_reference_gives_the_vectors_of_the_page(vectors):
    assert compute(vectors) == vectors


@pytest.fixture
def ring(vectors, tmp_path):
    """The keys of the page."""
    path = tmp_path / "project.key"
    path.write_bytes(b"labelguard project key v1\n" + bytes.fromhex(vectors["project_secret"]))
    path.chmod(0o600)
    return KeyRing(tmp_path)


def test_the_library_gives_the_names_of_the_page(vectors, ring):
    labelers = ring.hash_labelers(vectors["namespace"], [vectors["labeler_id"]])
    assert block128.to_hex(labelers[0]) == vectors["labeler"]
    names = ring.row_keys()
    identity = names.identify(labelers, blocks([vectors["item"]["digest"]]))
    for row in vectors["row_keys"]:
        [key] = names.keys(identity, np.array([row["pair"]], np.uint16))
        assert block128.to_hex(key) == row["row_key"]
    assert f"{names.order(identity)[0]:016x}" == vectors["order"]


def test_the_library_gives_the_coins_of_the_page(vectors):
    coins = Coins(bytes.fromhex(vectors["nonce"]))
    keys = blocks([vectors["row_keys"][0]["row_key"]])
    for drawn in vectors["coins"]:
        found = coins.draw(drawn["purpose"], keys, drawn["counter"])
        assert block128.to_hex(found[0]) == drawn["coin"]


def test_the_library_gives_the_blocks_of_the_page(vectors):
    binary = [law for law in vectors["blocks"] if law["letters"] == 2]
    assert len(binary) == 2
    for law in binary:
        found = Block(int(law["threshold"]), law["labels"])
        assert found.likely_change_limit == law["most_changes"]
        raw = found.change_limits.tobytes()  # numpy's bytes leave out zeros at the end
        assert raw == bytes.fromhex("".join(law["limits"]))
        assert found.bytes_per_draw * law["labels"] == len(raw)


def test_the_library_gives_the_contents_of_the_page(vectors, ring, in_sql):
    contents = vectors["contents"]
    words = pa.array([content["sides"] for content in contents])
    forms = [form for content in contents for form in content["normal_forms"]]
    assert canonical.normalize_words(words.flatten()).to_pylist() == forms
    digests = canonical.digest_content_units(words, in_sql)
    assert np.array_equal(digests, blocks([content["digest"] for content in contents]))
    units = blocks([content["unit"] for content in contents])
    assert np.array_equal(ring.hash_contents(digests), units)


def test_the_library_gives_the_digest_of_a_map_on_the_page(vectors, ring, tmp_path):
    release = vectors["map"]["release"]
    (tmp_path / release).mkdir()
    for name, text in vectors["map"]["files"].items():
        (tmp_path / release / name).write_bytes(text.encode())
    assert PrivateMap(tmp_path, ring).digest(release) == vectors["map"]["digest"]


def blocks(names):
    return block128.from_bytes(bytes.fromhex("".join(names)))


@pytest.mark.parametrize("named", [True, False])
def test_the_library_gives_the_items_of_questions_on_the_page(vectors, named, tmp_path):
    first, second = vectors["item"]["responses"]
    row = {"prompt": vectors["item"]["prompt"], "response_a": first, "response_b": second}
    row |= {"item_id": vectors["item_id"]["value"]} if named else {}
    expected = {
        entry["question"]: entry["item_id" if named else "item"] for entry in vectors["questions"]
    }
    source = pa.Table.from_pylist([row | {"question": question} for question in expected])
    options = StagingOptions(Reading({"question": "question"}, "item", labelled=False), "")
    staged = stage(source, tmp_path / "input", KeyRing.create(tmp_path / "keys"), options)
    found = find_distinct_pairs(staged)
    digests = [block128.to_hex(item) for item in found.items]
    assert found.questions is not None
    assert dict(zip(found.questions.to_pylist(), digests, strict=True)) == expected
    given = [f"item-17#{question}" for question in found.questions.to_pylist()]
    assert found.ids.to_pylist() == (given if named else digests)


# ---------------------------------------------------------------- canonical JSON in SQL

MESSAGE = '"role" VARCHAR, "content" {}, "name" VARCHAR, "tool_calls" VARCHAR'
CHAT = f"STRUCT({MESSAGE.format('VARCHAR')})[]"
PARTS = 'STRUCT("type" VARCHAR, "text" VARCHAR, "url" VARCHAR)[]'
CHAT_OF_PARTS = f"STRUCT({MESSAGE.format(PARTS)})[]"

words = st.text(st.characters(exclude_categories=["Cs"]))
texts = st.none() | words
part = words.map(lambda text: {"type": "text", "text": text, "url": None}) | words.map(
    lambda url: {"type": "image_url", "text": None, "url": url}
)
said = {CHAT: texts, CHAT_OF_PARTS: st.none() | st.lists(part, max_size=3)}


def draw_chats(kind):
    members = {"role": words, "content": said[kind], "name": texts, "tool_calls": texts}
    return st.lists(st.fixed_dictionaries(members), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def in_sql():
    with duckdb.connect() as connection:
        yield connection


def encoded(connection, value, content_type_sql):
    kind = connection.sql(f"SELECT NULL::{content_type_sql} AS x").types[0]
    encoding = canonical.encode_sql("x", chats.find_content_of_types([kind]))
    query = f"SELECT {encoding} FROM (SELECT $1::{content_type_sql} AS x)"
    found: str | None = connection.execute(query, [value]).fetchall()[0][0]
    return found


@settings(deadline=None, max_examples=40)
@given(data=st.data(), kind=st.sampled_from([CHAT, CHAT_OF_PARTS]))
def test_chats_are_encoded_in_sql_as_in_the_reference(in_sql, data, kind):
    chat = data.draw(draw_chats(kind))
    assert encoded(in_sql, chat, kind) == encode(chat).decode()


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_texts_are_encoded_in_sql_as_in_the_reference(in_sql, text):
    assert encoded(in_sql, text, "VARCHAR") == encode(text).decode()


def test_null_and_empty_chats_have_no_encoding(in_sql):
    message = {"role": "user", "content": None, "name": None, "tool_calls": None}
    assert encoded(in_sql, None, "VARCHAR") is None
    assert encoded(in_sql, [], CHAT) is None
    assert encoded(in_sql, [message, None], CHAT) is None
    assert encoded(in_sql, [message | {"role": None}], CHAT) is None
    assert encoded(in_sql, [message], CHAT) == 'c17:[{"role":"user"}]'


@pytest.mark.parametrize(
    "part",
    [
        None,
        {"type": "text", "text": None, "url": None},
        {"type": "text", "text": "x", "url": "y"},
        {"type": "image_url", "text": "x", "url": "y"},
        {"type": "image_url", "text": None, "url": None},
        {"type": "image", "text": None, "url": "y"},
        {"type": None, "text": "x", "url": None},
    ],
)
def test_a_part_that_is_neither_text_nor_image_has_no_encoding(in_sql, part):
    message = {"role": "user", "content": [part], "name": None, "tool_calls": None}
    assert encoded(in_sql, [message], CHAT_OF_PARTS) is None


# ---------------------------------------------------------------- what a project keeps


@dataclass(frozen=True)
class Label:
    """One canonical label: `value` is 1, 0 or 2 (tie); `author` gave it, `unit` has the uses."""

    author: bytes
    prompt: Any
    sides: list[Any]
    value: int
    item: bytes
    pair: int = 0
    item_id: str | None = None
    unit: bytes = b""
    content: bytes = bytes(8)

    @property
    def payer(self):
        return self.unit or self.author


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Release rows in one project; return the release, and what is read without labelguard.

    Of all that is drawn at random a release's coins come from the last, which is never stored.
    """
    nonces, project = world.note_randomness(monkeypatch), lg.init(tmp_path)

    def release_rows(rows, **options):
        options = {"mechanism": "rr", "epsilon": 9, "delta": 1e-5} | options
        release = make_release(pa.Table.from_pylist(rows), project=project, **options)
        return release, Stored(project.state, nonces[-1])

    return release_rows


# Files of a private map that hold no rows.
APART = {"nonce", turns.FILE}


class Stored:
    """A project read without labelguard: its key, prices, private maps and releases."""

    def __init__(self, state, nonce):
        self.state = state
        self.nonce = nonce
        self.secret = secret_of(state / "keys")
        with sqlite3.connect(state / "ledger.sqlite3") as ledger:
            self.thresholds = {
                int(k): int(json.loads(price)["threshold"])
                for k, price in ledger.execute("SELECT k, price FROM prices")
            }
            self.capacity = dict(ledger.execute("SELECT labeler, capacity FROM counters"))
            self.maps = {
                name: (digest, labels)
                for name, digest, labels in ledger.execute("SELECT id, map, drawn FROM releases")
            }

    def labeler(self, labeler_id):
        return labeler_key(self.secret, "files", labeler_id)

    def row_key(self, label):
        return row_key(self.secret, label.author, label.item, label.pair)

    def draw(self, labels, most):
        """Value, threshold and labels of the block of every label, by row key.

        All labels are new in one release, and at most so many of a unit are drawn together.
        """
        drawn = {}
        for payer in {label.payer for label in labels}:
            threshold = self.thresholds[self.capacity[payer]]
            own = sorted((one for one in labels if one.payer == payer), key=self._canonical_order)
            ordered = sorted(own, key=lambda one: order_key(self.secret, one.author, one.item))
            uses = -(-len(own) // most)
            for use in range(uses):
                whose = [one for i, one in enumerate(ordered) if i * uses // len(own) == use]
                block = sorted(whose, key=own.index)
                keys = [*map(self.row_key, block)]
                values = answer(self.nonce, threshold, keys, [one.value for one in block])
                for key, value in zip(keys, values, strict=True):
                    drawn[key] = (value, threshold, len(block))
        return drawn

    def _canonical_order(self, label):
        return label.item, label.author, label.pair

    def check(self, release, labels, version=0, known=True, block=16_384):
        """Compare a release of these labels, each of them new in it, with the reference.

        Unless `known`, the private map does not say who gave a label. At most `block` labels of a
        unit are drawn together.
        """
        directory = self.state / "released" / release.id
        data = {path.name: path.read_bytes() for path in directory.iterdir()}
        assert self.maps[release.id] == (map_digest(self.secret, release.id, data), len(labels))
        kept = [
            {"bucket": int(name[7:11])} | row
            for name in sorted(data.keys() - APART)
            for row in pq.read_table(directory / name, partitioning=None).to_pylist()
        ]
        expected = []
        rows = []
        drawn = self.draw(labels, block)
        for label in labels:
            key = self.row_key(label)
            value, *law = drawn[key]
            expected.append(
                {
                    "bucket": label.payer[0] >> 4,
                    "row_key": key,
                    "labeler": label.author if known else bytes(16),
                    "version": version,
                    "value": value,
                    "threshold": law[0],
                    "block_labels": law[1],
                    "content": int.from_bytes(label.content, "big"),
                }
            )
            chosen, rejected = label.sides if value else reversed(label.sides)
            row = {
                "prompt": label.prompt,
                "chosen": chosen,
                "rejected": rejected,
                "item_id": label.item_id or label.item.hex(),
                "label_probability": None,
                "flip_probability": flip_probability(*law),
                "residual_flip_estimate": None,
            }
            rows.append((label.item, key, row))
        assert kept == sorted(expected, key=lambda row: (row["bucket"], row["row_key"]))
        rows.sort(key=lambda entry: entry[:2])
        assert lg.load(release, "arrow").to_pylist() == [row for _, _, row in rows]


def canonical_pair(author, prompt, a, b, label):
    """Sides in canonical order, and the label mapped along."""
    value = 2 if label == 0.5 else int(label)
    if encode(a) > encode(b):
        a, b, value = b, a, value if value == 2 else 1 - value
    return Label(author, prompt, [a, b], value, item_digest(prompt, [a, b]))


def labels_of(rows, stored):
    """Pairs of plain texts as canonical labels."""
    names = ("prompt", "response_a", "response_b", "label")
    return [
        canonical_pair(stored.labeler(row["labeler_id"]), *(row[name] for name in names))
        for row in rows
    ]


def answers():
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


def test_every_released_pair_follows_from_key_nonce_prices_and_labels(draw):
    rows = [*answers(), *(row | {"labeler_id": "judge"} for row in answers()[:20:2])]
    release, stored = draw(rows)
    stored.check(release, labels_of(rows, stored))
    assert len(set(lg.load(release)["flip_probability"])) == 2  # blocks of 5 and of 10 labels


def test_a_label_drawn_again_has_the_coins_of_that_release(draw):
    draw(answers(), uses=3, block=8)
    release, stored = draw(answers(), uses=3, block=8, again=True)
    stored.check(release, labels_of(answers(), stored), version=1)


def test_no_nonce_is_left_behind(tmp_path, draw):
    nonce = draw(answers())[1].nonce
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(everything) > 10
    for path in everything:
        data = path.read_bytes()
        assert nonce not in data and nonce.hex().encode() not in data, path


def test_labels_take_places_in_the_order_of_the_page(draw):
    places = 3
    release, stored = draw(answers(), max_labels_per_labeler=places, block=1)

    def order(label):
        return order_key(stored.secret, label.author, label.item)

    labels = labels_of(answers(), stored)
    by_author = {one.author: [row for row in labels if row.author == one.author] for one in labels}
    assert {len(own) for own in by_author.values()} == {5}
    kept = [label for own in by_author.values() for label in sorted(own, key=order)[:places]]
    stored.check(release, kept, block=1)


def test_chats_with_given_ids_follow_too(draw):
    def chat(role, text):
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
    release, stored = draw(rows)
    labels = []
    for row in rows:
        sides = (row["prompt"], row["chosen"], row["rejected"])
        author, item_id = stored.labeler(row["labeler_id"]), row["item_id"]
        label = canonical_pair(author, *sides, 0.5 if row["tie"] else 1.0)
        given = {"item": id_digest(item_id), "item_id": item_id, "content": label.item[:8]}
        labels.append(replace(label, **given))
    stored.check(release, labels)


def test_rankings_follow_too(draw):
    rows = [
        {
            "labeler_id": f"judge {row % 2}",
            "prompt": f"Rank {row}",
            "responses": [f"answer {'x' * ((row + n) % 5)} {n}" for n in range(4)],
            "ranks": [(row + 2 * n) % 3 for n in range(4)],
        }
        for row in range(6)
    ]
    release, stored = draw(rows)
    labels = []
    for row in rows:
        item = item_digest(row["prompt"], row["responses"])
        ranked = zip(row["responses"], row["ranks"], strict=True)
        ranked = sorted(ranked, key=lambda one: encode(one[0]))
        for pair, ((a, rank_a), (b, rank_b)) in enumerate(combinations(ranked, 2)):
            value = 2 if rank_a == rank_b else int(rank_a < rank_b)
            author = stored.labeler(row["labeler_id"])
            labels.append(Label(author, row["prompt"], [a, b], value, item, pair))
    stored.check(release, labels)


def test_choices_in_blocks_of_several_uses_follow_too(draw):
    """The chosen response is before all others, which are tied; a choice of none is all ties."""
    rows = [
        {
            "labeler_id": f"judge {row % 2}",
            "prompt": f"Best of {row}",
            "responses": [f"{'x' * ((row + n) % 5)} {n}" for n in range(2 + row % 3)],
            "choice": row % 2 if row % 5 else None,
        }
        for row in range(16)
    ]
    release, stored = draw(rows, epsilon=2, block=3, skips="tie")
    labels = []
    for row in rows:
        sides = sorted(row["responses"], key=encode)
        best = None if row["choice"] is None else row["responses"][row["choice"]]
        author, item = stored.labeler(row["labeler_id"]), item_digest(row["prompt"], sides)
        for pair, (a, b) in enumerate(combinations(sides, 2)):
            value = 1 if a == best else 0 if b == best else 2
            labels.append(Label(author, row["prompt"], [a, b], value, item, pair))
    stored.check(release, labels, block=3)


@pytest.mark.quick("labeler_id")
@pytest.mark.parametrize("known_by", ["labeler_id", "record_id", None])
def test_contents_as_units_follow_too(draw, known_by):
    rows = answers()
    shown = [{k: v for k, v in row.items() if k != "labeler_id"} for row in rows]
    if known_by:
        shown = [row | {known_by: rows[n]["labeler_id"]} for n, row in enumerate(shown)]
    places = {"max_labels_per_labeler": 2, "unit": "item"}
    release, stored = draw(shown, epsilon=2, delta=0, **places)
    labels = []
    met: dict[bytes, int] = {}
    # Rows that are equal in all that is public are numbered in the order of their labels.
    pairs = zip(labels_of(rows, stored), rows, strict=True)
    for label, row in sorted(pairs, key=lambda pair: pair[0].value):
        author = label.author
        if known_by == "record_id":
            record = ranking_digest(row["labeler_id"])
            author = cbc_mac(derive(stored.secret, "public/record_hi,record_lo"), record)
        elif known_by is None:
            author = met.setdefault(label.item, 0).to_bytes(16, "big")
            met[label.item] += 1
        unit = content_unit(stored.secret, [label.prompt + side for side in label.sides])
        labels.append(replace(label, author=author, unit=unit))
    assert set(stored.capacity) == {label.unit for label in labels}
    stored.check(release, labels, known=known_by == "labeler_id")


def test_a_map_without_a_labelers_rows_has_the_digest_of_the_rest(draw):
    release, stored = draw(answers())
    erasure.remove_labeler("worker 3", "retired", stored.state)
    stored = Stored(stored.state, b"")
    directory = stored.state / "released" / release.id
    data = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert stored.maps[release.id] == (map_digest(stored.secret, release.id, data), 40)
    rows = [
        row["labeler"]
        for name in data.keys() - APART
        for row in pq.read_table(directory / name, partitioning=None).to_pylist()
    ]
    assert len(rows) == 35 and stored.labeler("worker 3") not in rows
