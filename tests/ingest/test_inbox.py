"""The inbox keeps what a hook was told exactly once, sealed, until a segment has it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import databases

from labelguard.errors import ConnectorError, KeyProblem
from labelguard.ingest.connector import Answer
from labelguard.ingest.inbox import FILE, Event, Inbox
from labelguard.keys.keyring import KeyRing

SECRET = "Maria Exampleova prefers the left one"


def event(number: int, connector: str = "clinic") -> Event:
    """One delivery with one answer."""
    answer = Answer(f"a{number}", number, "worker 7", f'{{"said": "{SECRET}", "n": {number}}}')
    return Event(f"delivery {number}", connector, (answer,))


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    return KeyRing.create(tmp_path / "keys")


@pytest.fixture(params=databases.KINDS)
def inbox(request: pytest.FixtureRequest, tmp_path: Path, keys: KeyRing) -> Iterator[Inbox]:
    with databases.fresh(request.param, tmp_path) as url:
        inbox = Inbox.at(tmp_path, url, keys)
        yield inbox
        inbox.close()


def test_a_delivery_is_one_event_however_often_it_comes(inbox: Inbox) -> None:
    assert inbox.put([event(1), event(2)]) == 2
    assert inbox.put([event(2), event(3), event(3)]) == 1
    assert inbox.put([]) == 0
    assert inbox.put([event(1, "other")]) == 1  # another tool may call its deliveries the same
    assert inbox.waiting() == 4
    assert inbox.connectors() == ["clinic", "other"]


def test_events_come_back_as_they_were_in_the_order_they_came(inbox: Inbox) -> None:
    given = [event(number) for number in (3, 1, 2)]
    for one in given:
        inbox.put([one])
    assert inbox.claim("clinic", "s1", most=2) == 2
    assert inbox.claim("clinic", "s2", most=2) == 1
    found = inbox.claimed("s1") + inbox.claimed("s2")
    assert [one.answers for one in found] == [one.answers for one in given]


def test_what_a_crash_left_claimed_waits_again_unless_its_segment_counts(inbox: Inbox) -> None:
    inbox.put([event(number) for number in range(4)])
    inbox.claim("clinic", "counts", most=2)
    inbox.claim("clinic", "crashed", most=2)
    inbox.settle({"counts"})
    assert inbox.waiting() == 2
    assert inbox.claimed("counts") == inbox.claimed("crashed") == []
    assert inbox.claim("clinic", "next", most=9) == 2
    inbox.settle({"counts", "next"})
    assert inbox.waiting() == 0
    assert inbox.put([event(number) for number in range(4)]) == 0  # still known


def test_filtering_forgets_answers_and_keeps_the_delivery(inbox: Inbox) -> None:
    pair = replace(event(1), answers=(*event(1).answers, *event(2).answers))
    inbox.put([pair, event(3)])

    def keep(one: Event) -> Event | None:
        rest = tuple(answer for answer in one.answers if answer.record == "a2")
        return replace(one, answers=rest) if rest else None

    assert inbox.filter(keep) == 2
    inbox.claim("clinic", "s", most=9)
    assert [a.record for one in inbox.claimed("s") for a in one.answers] == ["a2"]
    assert inbox.put([event(3)]) == 0


def test_dead_letters_are_kept_sealed_and_told_without_their_content(inbox: Inbox) -> None:
    inbox.bury("clinic", SECRET.encode(), "no annotation in it")
    (letter,) = inbox.letters()
    assert (letter.connector, letter.bytes, letter.why) == (
        "clinic",
        len(SECRET),
        "no annotation in it",
    )
    assert SECRET not in repr(letter)
    assert inbox.letter(letter.number) == SECRET.encode()
    inbox.remove(letter.number)
    assert inbox.letters() == []
    with pytest.raises(ConnectorError, match="no dead letter"):
        inbox.letter(letter.number)


def test_writers_at_once_lose_nothing_and_double_nothing(inbox: Inbox) -> None:
    def write(start: int) -> None:
        for number in range(start, start + 40, 4):
            inbox.put([event(n) for n in range(number, number + 8)])

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inbox.claim("clinic", "s", most=1000)
    records = [a.record for one in inbox.claimed("s") for a in one.answers]
    assert sorted(records) == sorted({f"a{n}" for n in range(84)})


def test_nothing_is_readable_in_its_files_and_erased_rows_are_gone(
    tmp_path: Path, keys: KeyRing
) -> None:
    inbox = Inbox.at(tmp_path, "sqlite:///ledger", keys)
    inbox.put([event(number) for number in range(50)])
    inbox.bury("clinic", SECRET.encode(), "unread")
    sealed = inbox.filter(lambda one: one)
    assert sealed == 0
    kept = b"".join(path.read_bytes() for path in tmp_path.glob(f"{FILE}*"))
    assert b"Maria" not in kept and b"worker 7" not in kept and b"delivery 1" not in kept
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    inbox.filter(lambda one: None)
    assert (tmp_path / f"{FILE}-wal").stat().st_size == 0
    inbox.close()


def test_an_event_moved_or_altered_in_the_file_is_refused(tmp_path: Path, keys: KeyRing) -> None:
    import sqlite3

    inbox = Inbox.at(tmp_path, "sqlite:///ledger", keys)
    inbox.put([event(1), event(2)])
    assert inbox.fault() is None
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(
            "UPDATE events SET body = (SELECT body FROM events WHERE number = 1) WHERE number = 2"
        )
    assert "altered" in (inbox.fault() or "")
    inbox.claim("clinic", "s", most=9)
    with pytest.raises(KeyProblem, match="altered"):
        inbox.claimed("s")
    inbox.close()


def test_a_full_disk_is_said_without_an_event(tmp_path: Path, keys: KeyRing) -> None:
    inbox = Inbox.at(tmp_path, "sqlite:///ledger", keys)
    with inbox._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.commit()
    big = Answer("r", 1, "worker 7", SECRET * 10_000)
    with pytest.raises(ConnectorError, match="full") as raised:
        inbox.put([Event("d", "clinic", (big,))])
    assert "Maria" not in str(raised.value)
    assert inbox.waiting() == 0
    inbox.close()
