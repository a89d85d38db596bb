"""How sources, and who is who, look on a terminal, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from labelguard.cli.terminal import print_facts, print_json, print_table, table
from labelguard.terms import counted


def added(value: Mapping[str, Any], *, as_json: bool) -> None:
    """A source that was added."""
    if as_json:
        print_json(value)
        return
    facts = [("source", value["name"]), ("people", value["people"])]
    if value["people"] == "known":
        facts.append(("", "link those who are known before their first charge: people link"))
    print_facts([*facts, ("release", f"labelguard privatize … --source {value['name']}")])


def sources(values: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """All sources."""
    if as_json:
        print_json(values)
        return
    if not values:
        click.echo("No source yet: the first release makes one.")
        return
    rows = table("source", "people", "since", "read as")
    for value in values:
        named = [f"{role}={name}" for role, name in value["columns"].items() if role != name]
        same = [role for role, name in value["columns"].items() if role == name]
        rows.add_row(value["name"], value["people"], value["at"], ", ".join([*same, *named]))
    print_table(rows)


def linked(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Two ids that are one person."""
    if as_json:
        print_json(value)
        return
    facts = []
    for who in value["people"]:
        met = "" if who["known"] else ", without labels so far"
        facts.append(("labeler", f"{who['pseudonym']} of {who['source']}{met}"))
    print_facts([*facts, ("are", f"one person{'' if value['linked'] else ', as before'}")])


def linked_table(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Many that are."""
    if as_json:
        print_json(value)
        return
    new = counted(value["linked"], "labeler")
    print_facts([("read", counted(value["pairs"], "pair")), ("linked", f"{new} more")])


def people(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Who is one with whom, and who is not."""
    if as_json:
        print_json(value)
        return
    if not value["linked"] and not value["distinct"]:
        click.echo("Every id is a person of their own.")
    if value["linked"]:
        rows = table("labeler", "takes from")
        for one in value["linked"]:
            rows.add_row(one["labeler"], one["unit"])
        print_table(rows)
    if value["distinct"]:
        rows = table("labeler", "is not")
        for one, other in value["distinct"]:
            rows.add_row(one, other)
        print_table(rows)


def distinct(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Two ids that are two people."""
    if as_json:
        print_json(value)
        return
    are = "two people" if value["new"] else "two people, as before"
    print_facts([*(("labeler", name) for name in value["people"]), ("are", are)])
