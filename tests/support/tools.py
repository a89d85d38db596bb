"""An annotation tool that lives in a file, and its connector, which comes by the door like others.

Its answers look like Label Studio's. It tells of changes by events that carry a whole answer or, as
tools do, nothing but the id of one that was deleted.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.doors import install

from labelguard.answers.connector import Answer, Page, Settings
from labelguard.answers.inbox import Event, Inbox
from labelguard.keys.keyring import KeyRing
from labelguard.project import ingestion
from labelguard.project.project import CONFIG, find

_CODE = "from support.tools import DeskConnector as door"
_PAGE = 3


@dataclass
class Desk:
    """The tool: what was annotated, in a file; every act returns the event that tells of it."""

    path: Path
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    clock: int = 0
    last: int = 0

    def answer(self, who, task, side, *, harmless=None):
        """A new answer; None is a skip."""
        self.last += 1
        record = str(self.last)
        self.records[record] = {"who": who, "task": task}
        return self.change(record, side, harmless=harmless)

    def change(self, record, side, *, harmless=None):
        """Another answer in its place."""
        self.clock += 1
        own = self.records[record]
        said = [("helpful", side), *([("harmless", harmless)] if harmless else [])]
        own["body"] = {
            "id": own["task"],
            "data": {
                "prompt": f"prompt {own['task']}",
                "answer1": f"left {own['task']}",
                "answer2": f"right {own['task']}",
            },
            "annotations": [
                {
                    "id": int(record),
                    "completed_by": own["who"],
                    "updated_at": f"2026-11-22T08:00:00.{self.clock:06d}Z",
                    "was_cancelled": side is None,
                    "ground_truth": False,
                    "result": [
                        {
                            "from_name": name,
                            "to_name": "answer1",
                            "type": "pairwise",
                            "value": {"selected": value},
                        }
                        for name, value in said
                        if value
                    ],
                }
            ],
        }
        own["version"] = self.clock
        self.save()
        return {"record": record, **own}

    def mark_truth(self, record):
        """Mark an answer as ground truth, as imports do."""
        self.records[record]["body"]["annotations"][0]["ground_truth"] = True
        self.save()

    def fill(self, rows):
        """What is in a table of pairs, in its order; answers that are there already stay."""
        known = {(own["who"], own["about"]): record for record, own in self.records.items()}
        for row in rows:
            about = json.dumps([row["prompt"], row["response_a"], row["response_b"]])
            if (row["labeler_id"], about) not in known:
                side = {1: "left", 0: "right"}.get(row["label"], "left")
                told = self.answer(row["labeler_id"], len(self.records), side)
                own = self.records[told["record"]]
                own["about"] = known[row["labeler_id"], about] = about
                sides = ("prompt", "response_a", "response_b")
                names = ("prompt", "answer1", "answer2")
                own["body"]["data"] = dict(zip(names, map(row.get, sides), strict=True))
        self.save()

    def delete(self, record):
        """An answer is gone; what is told is its id."""
        del self.records[record]
        self.save()
        return {"record": record}

    def save(self):
        self.path.write_text(json.dumps(self.records))


class DeskConnector:
    """Its connector, with the option `file`."""

    format = "label-studio"

    def __init__(self, settings):
        self._path = Path(settings.options["file"])

    def about(self):
        return {"title": "a desk"}

    def parse_event(self, event):
        return [_told(event["record"], event)]

    def pull(self, cursor=""):
        records = json.loads(self._path.read_text())
        since = int(cursor or 0)
        changed = sorted(
            (own["version"], record) for record, own in records.items() if own["version"] > since
        )
        for start in range(0, len(changed), _PAGE):
            page = changed[start : start + _PAGE]
            answers = [_told(record, records[record]) for _, record in page]
            yield Page(answers, str(page[-1][0]))

    def push(self, release, name, progress):
        pushed = self._path.with_name(name)
        pushed.write_text((release / "card.json").read_text())
        return str(pushed)


def _told(record, own):
    if "body" not in own:
        return Answer(record, 0)
    (state,) = own["body"]["annotations"]
    left_out = "ground truth" if state["ground_truth"] else "skip" if state["was_cancelled"] else ""
    return Answer(record, own["version"], own["who"], json.dumps(own["body"]), left_out)


def connected(project, directory, patch, more="", *, name="desk"):
    """A project with a connector `name` to an empty tool, and `more` lines of configuration."""
    install(directory / "site", "labelguard.connectors", "desk", _CODE, patch)
    path = directory / "desk.json"
    with (project.state / CONFIG).open("a") as file:
        hook = 'hook = { scheme = "shared-secret" }'
        file.write(f'\n[connectors.{name}]\nkind = "desk"\nfile = "{path}"\n{hook}\n{more}\n')
    desk = Desk(path)
    desk.save()
    return find(project.state.parent), desk


def take_in(project, *events):
    """Put events into the inbox, and from there into segments."""
    deliver(project, *events)
    return ingestion.ingest(project)


def deliver(project, *events, name="desk"):
    """Put events into the inbox as the hook of connector `name` does; how many were new."""
    connector = DeskConnector(Settings.from_table(name, {"file": "unused"}))
    inbox = Inbox.open(project.state, project.ledger_url, KeyRing(project.keys))
    told = [Event(name, tuple(connector.parse_event(event))) for event in events]
    try:
        return inbox.store_events(told)
    finally:
        inbox.close()
