"""The inbox keeps what a hook was told exactly once, sealed, until a segment has it."""

import threading
from dataclasses import replace

import pytest
from support import databases

from labelguard.answers.connector import Answer
from labelguard.answers.inbox import FILE, Event, Inbox
from labelguard.errors import ConnectorError, KeyProblem
from labelguard.keys.keyring import KeyRing

SECRET = "Maria Exampleova prefers the left one"


def event(number, connector="clinic"):
    """One delivery with one answer."""
    answer = Answer(f"a{number}", number, "worker 7", f'{{"said": "{SECRET}", "n": {number}}}')
    return Event(connector, (answer,))


@pytest.fixture
def keys(tmp_path):
    return KeyRing.create(tmp_path / "keys")


@pytest.fixture(params=databases.EACH)
def inbox(request, tmp_path, keys):
    with databases.fresh(request.param, tmp_path) as url:
        inbox = Inbox.open(tmp_path, url, keys)
        yield inbox
        inbox.close()


def test_a_state_of_an_answer_is_one_row_however_often_it_comes(inbox):
    assert inbox.store_events([event(1), event(2)]) == 2
    assert inbox.store_events([event(2), event(3), event(3)]) == 1
    assert inbox.store_events([]) == 0
    assert (
        inbox.store_events([event(1, "other")]) == 1
    )  # another tool may give an answer the same id
    assert inbox.count_waiting() == 4
    assert inbox.list_connectors() == ["clinic", "other"]


def test_events_come_back_as_they_were_in_the_order_they_came(inbox):
    given = [event(number) for number in (3, 1, 2)]
    for one in given:
        inbox.store_events([one])
    assert inbox.claim_events("clinic", "s1", most=2) == 2
    assert inbox.claim_events("clinic", "s2", most=2) == 1
    found = inbox.read_claimed("s1") + inbox.read_claimed("s2")
    assert [one.answers for one in found] == [one.answers for one in given]


def test_what_a_crash_left_claimed_waits_again_unless_its_segment_counts(inbox):
    inbox.store_events([event(number) for number in range(4)])
    inbox.claim_events("clinic", "counts", most=2)
    inbox.claim_events("clinic", "crashed", most=2)
    inbox.finish_claims({"counts"})
    assert inbox.count_waiting() == 2
    assert inbox.read_claimed("counts") == inbox.read_claimed("crashed") == []
    assert inbox.claim_events("clinic", "next", most=9) == 2
    inbox.finish_claims({"counts", "next"})
    assert inbox.count_waiting() == 0
    assert inbox.store_events([event(number) for number in range(4)]) == 0  # still known


def read_waiting(inbox):
    """What waits, in the order in which it came."""
    inbox.claim_events("clinic", "looked at", most=99)
    found = [answer.body for one in inbox.read_claimed("looked at") for answer in one.answers]
    inbox.finish_claims(())
    return found


def test_of_two_bodies_of_one_state_the_first_that_came_counts(inbox):
    first, second = (Answer("a1", 7, "maria", body) for body in ("one", "other"))
    assert inbox.store_events([Event("clinic", (first, second))]) == 1
    assert inbox.store_events([Event("clinic", (second,))]) == 0
    assert read_waiting(inbox) == ["one"]
    # Another version, and a deletion, are other states.
    assert (
        inbox.store_events([Event("clinic", (Answer("a1", 8, "maria", "two"), Answer("a1", 7)))])
        == 2
    )
    assert read_waiting(inbox) == ["one", "two", ""]


def test_a_state_that_came_more_than_once_is_known_until_a_later_pull(inbox):
    once, twice, within = (event(number).answers[0] for number in (1, 2, 3))
    inbox.store_events([event(1), event(2), event(3), event(3)])
    inbox.store_events([event(2)])
    found = [once, twice, within]
    assert inbox.find_repeated("clinic", found) == [False, True, True]
    assert inbox.find_repeated("other", found) == [False] * 3
    changed = replace(twice, body="something else", labeler="")
    assert inbox.find_repeated("clinic", [changed]) == [True]
    inbox.forget_repeated("clinic", found, before=0)  # they came again after it began
    assert inbox.find_repeated("clinic", found) == [False, True, True]
    inbox.forget_repeated("clinic", [twice], before=1 << 62)
    assert inbox.find_repeated("clinic", found) == [False, False, True]


def test_a_check_fails_before_a_delivery_does(tmp_path, keys):
    inbox = Inbox.open(tmp_path, "sqlite:///ledger", keys)
    for _ in range(3):
        inbox.check_writable()
    assert inbox.count_waiting() == 0
    with inbox._engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM checks").scalar() == 1
    fill(inbox)
    for number in range(200):
        try:
            inbox.check_writable()
        except ConnectorError as error:
            assert "full" in str(error)
            break
        inbox.store_events([event(number)])  # where a check succeeds, a delivery does
    else:
        pytest.fail("a full disk passes the check")
    inbox.close()


def fill(inbox):
    """Let the file not grow any more."""
    with inbox._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.commit()


def test_what_a_pull_left_out_is_a_letter_once_and_until_it_is_gone(inbox):
    inbox.store_dead_letter("clinic", b"", "not understood")
    inbox.record_omissions("other", ["answer 1: too large"], whole=True)
    for _ in range(2):
        inbox.record_omissions("clinic", ["answer 1: too large"], whole=False)
    inbox.record_omissions("clinic", ["answer 2: too large"], whole=False)
    assert [one.why for one in inbox.list_dead_letters()] == [
        "not understood",
        *("answer 1: too large", "answer 1: too large", "answer 2: too large"),
    ]
    inbox.record_omissions("clinic", ["answer 2: too large"], whole=True)
    assert [(one.connector, one.why) for one in inbox.list_dead_letters()] == [
        ("clinic", "not understood"),
        ("other", "answer 1: too large"),
        ("clinic", "answer 2: too large"),
    ]


def test_filtering_forgets_answers_and_keeps_that_they_came(inbox):
    pair = replace(event(1), answers=(*event(1).answers, *event(2).answers))
    inbox.store_events([pair, event(3)])

    def keep(one):
        rest = tuple(answer for answer in one.answers if answer.record == "a2")
        return replace(one, answers=rest) if rest else None

    assert inbox.filter_events(keep) == 2
    inbox.claim_events("clinic", "s", most=9)
    assert [a.record for one in inbox.read_claimed("s") for a in one.answers] == ["a2"]
    assert inbox.store_events([event(3)]) == 0


def test_dead_letters_are_kept_sealed_and_told_without_their_content(inbox):
    inbox.store_dead_letter("clinic", SECRET.encode(), "no annotation in it")
    (letter,) = inbox.list_dead_letters()
    assert (letter.connector, letter.bytes, letter.why) == ("clinic", 16_384, "no annotation in it")
    assert SECRET not in repr(letter)
    assert inbox.read_dead_letter(letter.number).rstrip() == SECRET.encode()
    inbox.delete_dead_letter(letter.number)
    assert inbox.list_dead_letters() == []
    with pytest.raises(ConnectorError, match="no dead letter"):
        inbox.read_dead_letter(letter.number)


@pytest.mark.parametrize("inbox", databases.KINDS, indirect=True)
def test_writers_at_once_lose_nothing_and_double_nothing(inbox):
    def write(start):
        for number in range(start, start + 40, 4):
            inbox.store_events([event(n) for n in range(number, number + 8)])

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inbox.claim_events("clinic", "s", most=1000)
    records = [a.record for one in inbox.read_claimed("s") for a in one.answers]
    assert sorted(records) == sorted({f"a{n}" for n in range(84)})


def test_nothing_is_readable_in_its_files_and_erased_rows_are_gone(tmp_path, keys):
    inbox = Inbox.open(tmp_path, "sqlite:///ledger", keys)
    inbox.store_events([event(number) for number in range(50)])
    inbox.store_dead_letter("clinic", SECRET.encode(), "unread")
    sealed = inbox.filter_events(lambda one: one)
    assert sealed == 0
    kept = b"".join(path.read_bytes() for path in tmp_path.glob(f"{FILE}*"))
    assert b"Maria" not in kept and b"worker 7" not in kept
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    inbox.filter_events(lambda one: None)
    assert (tmp_path / f"{FILE}-wal").stat().st_size == 0
    inbox.close()


def test_an_event_moved_or_altered_in_the_file_is_refused(tmp_path, keys):
    import sqlite3

    inbox = Inbox.open(tmp_path, "sqlite:///ledger", keys)
    inbox.store_events([event(1), event(2)])
    assert inbox.find_fault() is None
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(
            "UPDATE events SET body = (SELECT body FROM events WHERE number = 1) WHERE number = 2"
        )
    assert "altered" in (inbox.find_fault() or "")
    inbox.claim_events("clinic", "s", most=9)
    with pytest.raises(KeyProblem, match="altered"):
        inbox.read_claimed("s")
    inbox.close()


def test_a_full_disk_is_said_without_an_event(tmp_path, keys):
    inbox = Inbox.open(tmp_path, "sqlite:///ledger", keys)
    fill(inbox)
    big = Answer("r", 1, "worker 7", SECRET * 10_000)
    with pytest.raises(ConnectorError, match="full") as raised:
        inbox.store_events([Event("clinic", (big,))])
    assert "Maria" not in str(raised.value)
    assert inbox.count_waiting() == 0
    inbox.close()
