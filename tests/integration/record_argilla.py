"""Makes tests/connectors/recordings/argilla anew, with a real server: run it from the repository.

    PYTHONPATH=tests python tests/integration/record_argilla.py

The people, texts and answers are made up; whatever is private in them begins with "private".
"""

import json
import tempfile
import time
from pathlib import Path

from integration.argilla_server import choice, ranking, rating, running, text
from integration.webhook_receiver import webhook_receiver

OUT = Path(__file__).parents[1] / "connectors" / "recordings" / "argilla"
SIDES = ("response_a", "response_b")
QUESTIONS = [
    choice("preference", *SIDES, "tie"),
    ranking("order", *SIDES),
    rating("confidence"),
    text("reason"),
]
RECORDS = [
    {
        "prompt": [{"role": "user", "content": f"private question {number}"}],
        "response_a": [{"role": "assistant", "content": f"private answer {number}"}],
        "response_b": [{"role": "assistant", "content": f"private other answer {number}"}],
    }
    for number in range(2)
]
EVENTS = [
    *(f"response.{what}" for what in ("created", "updated", "deleted")),
    "record.completed",
    "dataset.published",
]


def main():
    """Act as two labelers, and write down what the server says."""
    with (
        webhook_receiver() as receiver,
        tempfile.TemporaryDirectory() as directory,
        running(Path(directory)) as server,
    ):
        server.add_webhook(receiver.url, EVENTS)
        pages = _act(server)
        heard = receiver.bodies
        _until_quiet(heard)
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.json"):
        old.unlink()
    for number, event in enumerate(heard):
        _write(f"{number:02}.{event['type']}.json", event)
    for name, page in pages.items():
        _write(f"{name}.json", page)


def _act(server):
    ann, bob = server.users("private-ann", "private-bob")
    dataset = server.dataset("prefs", QUESTIONS, RECORDS)
    one, other = dataset.records
    equal = [{"value": side, "rank": 1} for side in SIDES]
    mine = server.answer(ann, one, preference="tie", order=equal, confidence=5, reason="private")
    server.update(ann, mine, preference="response_b", reason="private second thought")
    server.update(ann, mine, status="draft", preference="response_a")
    server.update(ann, mine, preference="response_a")
    server.draft(bob, one, preference="response_b")
    skipped = server.discard(bob, other, reason="private: I cannot tell")
    server.delete(bob, skipped)
    server.discard(ann, other)
    path = f"/datasets/{dataset.id}"
    return {
        "records": server.call("GET", f"{path}/records?include=responses"),
        "questions": server.call("GET", f"{path}/questions"),
    }


def _until_quiet(heard):
    known = -1
    while known != len(heard):
        known = len(heard)
        time.sleep(3)


def _write(name, told):
    (OUT / name).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
