"""How backups, restores and new pseudonyms look on a terminal, or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from labelguard.cli.terminal import echo, print_facts, print_json
from labelguard.terms import counted


def backup(value: Mapping[str, Any], *, as_json: bool) -> None:
    """What a backup holds, what it does not, and its anchor."""
    if as_json:
        print_json(value)
        return
    entries = counted(value["journal_entries"], "journal entry")
    facts = [
        ("backup", f"{value['path']} ({value['bytes']:,} bytes, mode 0600)"),
        (
            "holds",
            f"settings, the ledger ({entries}), {counted(value['releases'], 'release')} and the "
            "PRIVATE maps of released labels",
        ),
        (
            "keys",
            "in it, enciphered under your passphrase: without the passphrase they are lost"
            if value["keys"]
            else "not in it: keep a copy of the keys directory elsewhere; without it the backup "
            "cannot be restored",
        ),
        ("left out", "rows set aside (quarantine)"),
    ]
    if value["unfinished"]:
        names = ", ".join(value["unfinished"])
        facts.append(("unfinished", f"{names}: cannot be resumed from this backup"))
    print_facts([*facts, ("anchor", value["anchor"])])
    _next(
        [
            "Keep the anchor where this project cannot change it.",
            "Back up again after every release, and after activating a policy, changing groups, "
            "or retiring a labeler.",
        ]
    )


def restored(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Whether a project came back whole, and what to do next."""
    if as_json:
        print_json(value)
        return
    whole = value["complete"]
    state = (
        "complete: the anchor shows that nothing followed the backup"
        if whole
        else "charges may have followed the backup; they are covered by full prices"
    )
    facts = [
        ("project", value["project"]),
        ("backup", f"{value['backup']}, made {value['created_at']}"),
        ("state", state),
        ("keys", value["keys"]),
        ("releases", f"{value['releases']:,}"),
    ]
    if value["closed"]:
        facts.append(("closed", f"policy {', '.join(value['closed'])}, at its full price"))
    if value["lost_policies"]:
        facts.append(("lost", f"{', '.join(value['lost_policies'])}: paid at the prices given"))
    if value["abandoned"]:
        facts.append(("abandoned", f"{', '.join(value['abandoned'])}: charged, never finished"))
    print_facts([*facts, ("anchor", value["anchor"])])
    _next(_steps(value))


def _steps(value: Mapping[str, Any]) -> Iterable[str]:
    if not value["complete"]:
        yield (
            "Put a new policy into force (labelguard policy new, labelguard policy activate): "
            "it is paid on top of what was closed."
        )
        yield (
            "Before that, repeat what followed the backup: groups (labelguard policy groups), and "
            "labelers who were retired or erased."
        )
    yield "The keys belong to this project now: never let another one work with them."


def rotated(value: Mapping[str, Any], *, as_json: bool) -> None:
    """How many got new names, and what to do next."""
    if as_json:
        print_json(value)
        return
    names = counted(value["renamed"], "pseudonym")
    print_facts([("project", value["project"]), ("renamed", f"{names} in the ledger")])
    _next(
        [
            "Back up the keys directory and the project again: older backups of the ledger go "
            "with the keys of their time.",
            "Entries that the journal had already keep the old names of labelers who left.",
        ]
    )


def renewed(value: Mapping[str, Any], *, as_json: bool) -> None:
    """What the new witnesses know, and how far an anchor vouched for it."""
    if as_json:
        print_json(value)
        return
    known = value["proven_to"]
    print_facts(
        [
            ("project", value["project"]),
            ("witnesses", f"written, at journal entry {value['journal_entries']}"),
            (
                "proven",
                f"up to entry {known}, by the anchor" if known else "nothing, without anchor",
            ),
            ("anchor", value["anchor"]),
        ]
    )
    _next(["Keep the anchor where this project cannot change it."])


def _next(steps: Iterable[str]) -> None:
    echo()
    for step in steps:
        echo(f"· {step}")
