"""How Argilla is asked: again after failures that pass, and page by page while others work.

Which pairs of a release Argilla is given, and which chats it is not.
"""

import random
from typing import Any

import polars as pl
import pytest
import tenacity
from hypothesis import given, settings
from hypothesis import strategies as st
from labelguard_connectors import http
from labelguard_connectors.argilla import Argilla
from labelguard_connectors.argilla.publishing import collect_displayable_pairs
from labelguard_connectors.argilla.rest import ArgillaClient, list_pages
from support.replies import Server, serving

from labelguard.answers.connector import Settings, open_connector
from labelguard.errors import ConnectorError
from labelguard.text import no_progress

KEY = "key-of-nobody-else"
SECRET = "what the server says is not for logs"
OK = (200, {}, {"items": []})
AGAIN = {"Retry-After": "0"}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(http, "backoff", tenacity.wait_none())
    found = Server()
    with serving(found):
        yield found


def rest(server):
    return ArgillaClient("argilla", server.url, KEY)


@pytest.mark.parametrize(
    "failures",
    [
        [(503, {}, SECRET)],
        [(500, {}, SECRET), (502, {}, SECRET), (504, {}, SECRET), (429, AGAIN, SECRET)],
        [(429, {"Retry-After": "Sun, 22 Nov 2026 07:28:00 GMT"}, SECRET)],
        [None, None],
    ],
)
def test_what_may_pass_is_tried_again(server, failures):
    server.replies += [*failures, OK]
    with rest(server) as argilla:
        assert argilla.get(Any, "/api/v1/datasets", name="prefs") == {"items": []}
    assert server.asked == [("GET", "/api/v1/datasets?name=prefs")] * (len(failures) + 1)
    assert {sent["X-Argilla-Api-Key"] for sent in server.headers} == {KEY}


def test_after_five_tries_it_is_an_error(server):
    server.replies += [(503, AGAIN, SECRET)] * 9
    with rest(server) as argilla, pytest.raises(ConnectorError) as refused:
        argilla.send("POST", "/api/v1/token")
    assert "POST /api/v1/token: HTTP 503; tried" in str(refused.value)
    assert len(server.asked) == 5


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {}, SECRET), "HTTP 401: the API key is not accepted"),
        ((403, {}, SECRET), "HTTP 403: the API key's user may not do this"),
        ((404, {}, SECRET), "HTTP 404: not found; check url, workspace and dataset"),
        ((422, {}, SECRET), "HTTP 422: Argilla does not accept"),
        ((302, {"Location": "http://127.0.0.1:1/"}, SECRET), "HTTP 302: check url"),
        ((200, {}, f"<html>{SECRET}"), "expected JSON"),
        ((200, {}, "[" * 100_000), "expected JSON"),
        ((200, {"Content-Encoding": "gzip"}, SECRET), "check url"),
    ],
)
def test_an_error_says_what_to_check_and_nothing_that_was_told(server, answer, said, caplog):
    caplog.set_level(0)
    server.replies += [answer] * 5
    with rest(server) as argilla, pytest.raises(ConnectorError) as refused:
        argilla.get(Any, "/api/v1/me/datasets")
    error = str(refused.value)
    assert said in error and error.startswith("connector argilla: GET /api/v1/me/datasets: ")
    assert refused.value.__context__ is None or refused.value.__suppress_context__
    for secret in (KEY, SECRET):
        assert secret not in error and secret not in caplog.text
    assert KEY not in repr(argilla)


def test_where_nobody_listens_url_is_to_be_checked(monkeypatch):
    monkeypatch.setattr(http, "backoff", tenacity.wait_none())
    with (
        ArgillaClient("argilla", "http://127.0.0.1:1", KEY) as argilla,
        pytest.raises(ConnectorError, match="cannot be reached"),
    ):
        argilla.get(Any, "/api/v1/datasets")


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_a_key_that_is_none_is_not_shown(server, key):
    server.replies += [OK]
    with (
        pytest.raises(ConnectorError) as refused,
        ArgillaClient("argilla", server.url, key) as argilla,
    ):
        argilla.get(Any, "/api/v1/me")
    assert key not in str(refused.value)
    assert server.asked == []


def test_a_data_set_that_is_not_there_is_said(server, monkeypatch):
    monkeypatch.setenv("LABELGUARD_ARGILLA_API_KEY", KEY)
    table = {"url": server.url, "dataset": "prefs", "workspace": "labelers"}
    workspace = {"id": "00000000-0000-4000-8000-000000000000", "name": "labelers"}
    server.replies += [OK, (200, {}, {"items": [workspace]}), OK]
    argilla = open_connector(Settings.from_table("argilla", table))
    for noun in ("workspace", "dataset"):
        with pytest.raises(ConnectorError, match=f"no {noun} of that name .* check {noun}"):
            argilla.about()


def test_retry_after_is_seconds_or_a_date():
    assert http._parse_retry_after(" 7 ") == 7
    assert http._parse_retry_after("Sat, 21 Nov 2020 07:28:00 GMT") < 0  # type: ignore[operator]
    assert (
        http._parse_retry_after("")
        is http._parse_retry_after("-7")
        is http._parse_retry_after("soon")
        is None
    )


# Page by page


class Busy(ArgillaClient):
    """A data set whose records come and go between requests, and are paged as Argilla pages them.

    Records of the same time are in another order each time. It asks no server: what matters
    here is when what happens, and no server can be told that.
    """

    def __init__(self, times, gone, seed):
        super().__init__("argilla", "http://127.0.0.1:1", KEY)
        self._random = random.Random(seed)
        self.times = {
            f"{number:08x}-0000-4000-8000-000000000000": time for number, time in enumerate(times)
        }
        self._gone = gone
        self._now = max(times, default=0)

    def send(self, method, path, **options):
        query = options["query"]
        assert query["include"] == "responses"
        offset, limit = query["offset"], query["limit"]
        shuffled = self._random.sample(sorted(self.times), len(self.times))
        shuffled.sort(key=lambda name: self.times[name])
        items = [self._record(name) for name in shuffled[offset : offset + limit]]
        if self._gone and self.times:
            for _ in range(self._gone.pop()):
                if self.times:
                    del self.times[self._random.choice(sorted(self.times))]
            self._now += 1
            name = f"{self._now:08x}-ffff-4000-8000-000000000000"
            self.times[name] = self._now
        return {"items": items}

    def _record(self, name):
        seconds, micros = divmod(self.times[name], 3)
        created = f"2026-01-01T00:00:{seconds:02}.{micros:06}"
        members = {"external_id": None, "fields": {}, "responses": []}
        return {"id": name, "inserted_at": created, **members}


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 100), max_size=40),
    st.lists(st.integers(0, 9), max_size=10),
    st.integers(4, 12),
    st.integers(0, 2**32),
)
def test_every_record_that_stays_is_read_once(times, gone, limit, seed):
    # At most two of a page's length are as old as one another.
    times = [time for time in set(times) for _ in range(min(times.count(time), limit - 3))]
    busy = Busy(sorted(times), gone, seed)
    before = set(busy.times)
    found = [record.id for page in list_pages(busy, "d", limit) for record in page]
    assert len(found) == len(set(found))
    assert before & set(busy.times) <= set(found)


def test_records_that_cannot_be_told_apart_by_time_are_an_error():
    busy = Busy([7] * 20, [], 0)
    with pytest.raises(ConnectorError, match="same microsecond"):
        list(list_pages(busy, "d", 10))


def test_another_order_than_expected_is_an_error():
    class Reversed(Busy):
        def send(self, method, path, **options):
            return {"items": super().send(method, path, **options)["items"][::-1]}

    with pytest.raises(ConnectorError, match="items: expected records in the order of inserted_at"):
        list(list_pages(Reversed([1, 2, 3], [], 0), "d", 10))


DATASET = "00000000-0000-4000-8000-000000000000"


def push(release, name):
    """Push to an address where nobody listens: whoever asks anything there is told so."""
    options = {"url": "http://127.0.0.1:1", "dataset": DATASET}
    Argilla(Settings.from_table("argilla", options)).push(release, name, no_progress)


def chat(*messages):
    return list(messages)


def build_message(text="text", role="user"):
    return {"role": role, "content": text}


def release_rows(prompt, chosen, rejected):
    return pl.DataFrame(
        {
            "prompt": prompt,
            "chosen": chosen,
            "rejected": rejected,
            "item_id": [f"item {text}" for text in prompt],
            "label_probability": pl.Series([None] * len(prompt), dtype=pl.Float64),
        }
    )


def test_a_pair_is_one_record_whichever_side_was_chosen_how_often():
    frame = release_rows(["p", "p", "p", "q", "q"], [*"bab", *"cd"], [*"aba", *"dc"])
    assert collect_displayable_pairs(frame).rows() == [
        ("item p", "p", "a", "b", pytest.approx(1 / 3)),
        ("item q", "q", "c", "d", 0.5),
    ]


def test_what_a_teacher_says_is_its_probability():
    frame = release_rows(["p", "q"], ["b", "c"], ["a", "d"])
    frame = frame.with_columns(pl.Series("label_probability", [0.75, 0.75]))
    assert collect_displayable_pairs(frame)["share"].to_list() == [0.25, 0.75]


def test_one_pair_under_two_questions_is_two_records():
    frame = release_rows(["p", "p"], ["a", "b"], ["b", "a"])
    frame = frame.with_columns(pl.Series("question", ["helpful", "harmless"]))
    rows = collect_displayable_pairs(frame).select("question", "share").rows()
    assert rows == [("helpful", 1), ("harmless", 0)]


def test_chats_have_an_order_of_their_own():
    one, other = chat(build_message("a", "assistant")), chat(build_message("b", "assistant"))
    frames = [
        release_rows([chat(build_message())] * 2, [one, other], [other, one]),
        release_rows([chat(build_message())] * 2, [other, one], [one, other]),
    ]
    pairs = [collect_displayable_pairs(frame) for frame in frames]
    assert pairs[0].equals(pairs[1])
    assert pairs[0]["response_a"].to_list() == [one] and pairs[0]["share"].to_list() == [0.5]


@pytest.mark.parametrize(
    "chosen",
    [
        chat(),
        chat(build_message("")),
        chat(build_message(None), build_message()),
        chat(build_message(role="")),
        chat(build_message(role="r" * 21)),
        chat(*[build_message()] * 501),
        chat({**build_message(), "name": "somebody"}),
        chat(build_message([{"type": "text", "text": "part"}])),
    ],
)
def test_chats_that_cannot_be_shown_are_refused_before_anything_is_made(chosen, tmp_path):
    frame = release_rows([chat(build_message())], [chosen], [chat(build_message("other"))])
    if chosen == []:
        frame = frame.with_columns(pl.col("chosen").cast(frame.schema["prompt"]))
    frame.write_parquet(tmp_path / "data.parquet")
    with pytest.raises(ConnectorError, match=r"^chosen: Argilla shows no chat but of 1 to 500"):
        push(tmp_path, "name")


def test_what_is_no_release_of_pairs_is_refused_before_anything(tmp_path):
    pl.DataFrame({"prompt": ["p"]}).write_parquet(tmp_path / "data.parquet")
    with pytest.raises(ConnectorError, match="no release of pairs"):
        push(tmp_path, "name")


@pytest.mark.parametrize("name", ["", "n" * 201, "workspace/", "workspace/" + "n" * 201])
def test_names_that_argilla_does_not_take_are_refused(name, tmp_path):
    with pytest.raises(ConnectorError, match="1 to 200 characters"):
        push(tmp_path, name)
