"""How leaving labelers look on a terminal, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labelguard.cli.terminal import echo, print_facts, print_json, print_table, table
from labelguard.policy import events
from labelguard.terms import budget_of, counted


def leaving(value: Mapping[str, Any], *, done: bool, as_json: bool = False) -> None:
    """What is done, or would be, when a labeler leaves, and what remains."""
    if as_json:
        print_json(value)
        return
    print_facts(_facts(value, done))
    if value["releases"]:
        echo()
        rows = table("release", "at", "state", "mechanism", "took", right=["took"])
        for release in value["releases"]:
            took = counted(release["used"], events.kind(release["event"]).taken)
            first = (release["id"], release["created_at"], release["state"])
            rows.add_row(*first, release["mechanism"], took)
        print_table(rows)
    echo()
    remains = [
        ("remains" if not number else "", f"· {line}")
        for number, line in enumerate(value["remains"])
    ]
    print_facts(remains)


def _facts(value: Mapping[str, Any], done: bool) -> Iterator[tuple[str, str]]:
    yield "labeler", value["labeler"]
    yield "is" if done else "will be", _state(value)
    if not value["known"]:
        yield "", "nothing of theirs was found; labels that come later are refused"
    if value["rows_remembered"]:
        rows = counted(value["rows_remembered"], "row")
        yield "private maps", f"{rows} of theirs {'forgotten' if done else 'to be forgotten'}"
    erased = value["kind"] == "erased"
    if value["rows_set_aside"]:
        rows = counted(value["rows_set_aside"], "row")
        removed = "removed" if done else "to be removed"
        yield "quarantine", f"{rows} of theirs {removed if erased else 'kept'}"
    for name in value["unreadable_files"] if erased else ():
        yield "", f"{name} cannot be read and goes whole"
    for release_id in value["given_up"]:
        yield (
            "given up",
            (
                f"{release_id}, unfinished: it cannot be finished without their labels, and stays "
                "charged" + ("" if done else "; to keep it, run its command again first")
            ),
        )
    if value["releases"]:
        whose = "of their group" if value["group"] else "of theirs"
        labels = counted(value["randomized_labels"], "randomized label")
        statistics = counted(value["statistic_releases"], "statistic release")
        yield (
            "earlier",
            (
                f"{labels} {whose}, part of {statistics}, under {budget_of(value)} over the "
                "project's life"
            ),
        )


def _state(value: Mapping[str, Any]) -> str:
    if value["before"] == value["kind"]:
        return f"{value['kind']}, as before"
    upgraded = ", retired before" if value["before"] else ""
    return f"{value['kind']}{upgraded}"


def departures(values: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Who left."""
    if as_json:
        print_json(values)
        return
    if not values:
        echo("No labeler was retired or erased.")
        return
    rows = table("labeler", "is", "since")
    for value in values:
        rows.add_row(value["pseudonym"], value["kind"], value["at"])
    print_table(rows)
