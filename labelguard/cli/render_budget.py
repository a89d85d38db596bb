"""How policies, budgets and the journal look on a terminal, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labelguard.cli.terminal import echo, number, print_facts, print_json, print_table, table
from labelguard.policy import events
from labelguard.policy.label_values import DEFAULT_TEXT
from labelguard.terms import budget_of, counted


def policy(value: Mapping[str, Any], *, as_json: bool) -> None:
    """A policy: what it pays for, and what that costs alone and together."""
    if as_json:
        print_json(value)
        return
    quote, unit = value["quote"], value["unit"]
    print_facts(
        [
            ("policy", f"{value['name']} ({_state(value)})"),
            ("budget", f"{budget_of(value)} for each {unit}, under replace_labels"),
            (
                "pays for",
                " and ".join(_paid(one, unit, value["name"]) for one in value["allowances"]),
            ),
            ("ties", f"{value['ties']}{', tie status public' * value['tie_status_public']}"),
            ("label values", value["label_values"] or DEFAULT_TEXT),
            ("skips", value["skips"]),
            *((("assignment", "reacts to labels"),) if value["assignment_reactive"] else ()),
            ("accountant", f"{quote['accountant']}; labelguard {quote['versions']['labelguard']}"),
            *([("together", _together(value))] if "events" in quote else []),
        ]
    )
    if "events" not in quote:
        return
    echo()
    rows = table("event", "noise", "times", "ε alone", right=["times", "ε alone"])
    for event in quote["events"]:
        times, alone = f"{event['allowed']:,}", f"{event['epsilon_alone']:.4f}"
        rows.add_row(events.kind(event["event"]).noun, _noise(event), times, alone)
    rows.add_row("all, in any adaptive order", "", "", f"{quote['epsilon']:.4f}")
    for name in _BOUNDS:
        found = quote["upper_bounds"][name]
        rows.add_row(f"  {_BOUNDS[name]}", "", "", "–" if found is None else f"{found:.4f}")
    print_table(rows)
    if value["closing_points"] > 1:
        echo()
        _closing_points(value)


_BOUNDS = {
    "pure": "sum of pure ε (an upper bound)",
    "basic": "sum of the kinds' own prices (an upper bound)",
    "advanced": "advanced composition (an upper bound)",
    "rdp": "Rényi composition (an upper bound)",
}


def _closing_points(value: Mapping[str, Any]) -> None:
    points = value["quote"]["points"]
    rows = table("closing point", "used at most", "costs ε", right=["costs ε"])
    for point in points:
        used = ", ".join(f"{event} {count:,}" for event, count in point["used"].items())
        rows.add_row(f"{point['point']} of {len(points)}", used, f"{point['epsilon']:.4f}")
    print_table(rows)


def _together(value: Mapping[str, Any]) -> str:
    quote = value["quote"]
    share = f" (δ/{value['closing_points']})" if value["closing_points"] > 1 else ""
    return (
        f"ε = {quote['epsilon']:.6f} at δ = {quote['delta_at_points']:g}{share}, "
        f"unused ε {max(quote['slack'], 0):.1e}"
    )


def _noise(event: Mapping[str, Any]) -> str:
    if "noise_multiplier" in event:
        return f"σ = {event['noise_multiplier']:.4f} × sensitivity"
    return f"flip probability {event['flip_probability']:.4f}"


def _state(value: Mapping[str, Any]) -> str:
    if value["closed_at_point"]:
        return f"closed at point {value['closed_at_point']} of {value['closing_points']}"
    return str(value["state"])


def _paid(allowance: Mapping[str, Any], unit: str, name: str) -> str:
    kind, allowed = events.kind(allowance["event"]), allowance["allowed"]
    if name.startswith("lost-"):
        return "unknown: it followed the backup that was restored, and is paid in full"
    if allowed is None:
        rounded = "1, 2, 4, …" if unit == "item" else "8, 16, 32, …"
        return f"the {unit}'s own number of labels, rounded up to {rounded}"
    return counted(allowed, kind.noun) + ", each of any number of labels" * (not kind.per_label)


def policies(values: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """All policies, one line each."""
    if as_json:
        print_json(values)
        return
    if not values:
        echo("No policy yet: labelguard policy new makes one, or the first privatize.")
        return
    rows = table("name", "state", "created", "budget", "allowances", "costs ε", right=["costs ε"])
    for value in values:
        allowed = ", ".join(
            f"{event} {'own' if count is None else format(count, ',')}"
            for event, count in value["allowances"].items()
        )
        costs = "–" if value["costs"] is None else f"{value['costs']:.4g}"
        first = (value["name"], value["state"], value["created_at"])
        rows.add_row(*first, budget_of(value), allowed, costs)
    print_table(rows)


def preview(value: Mapping[str, Any], *, err: bool) -> None:
    """What activating a policy means, before it is asked for; `err`: on standard error."""
    facts = [("activates", f"{value['activates']}, {budget_of(value)} for each {value['unit']}")]
    closes = value["closes"]
    if closes:
        where = (
            f"at closing point {closes['point']} of {closes['points']}, fixed beforehand"
            if closes["point"]
            else "at its full price, used or not"
        )
        facts.append(("closes", f"{closes['name']}, {where}: {budget_of(closes)}"))
    facts.append(_total(value["total"]))
    facts.append(_ceiling(value))
    print_facts(facts, err=err)


def activated(value: Mapping[str, Any], *, as_json: bool) -> None:
    """That a policy is in force."""
    if as_json:
        print_json(value)
        return
    echo(f"Policy {value['activates']} is in force.")


def closed(value: Mapping[str, Any], *, as_json: bool) -> None:
    """That a policy is closed, and what it costs."""
    if as_json:
        print_json(value)
        return
    where = f"at closing point {value['point']}" if value["point"] else "at its full price"
    echo(f"Policy {value['name']} is closed {where}: {budget_of(value)}.")


def _total(total: Mapping[str, Any]) -> tuple[str, str]:
    return "total", f"{budget_of(total)} over the project's life, whatever decided about changes"


def _ceiling(value: Mapping[str, Any]) -> tuple[str, str]:
    return "ceiling", f"{budget_of(value['ceiling'])}, for all policies together"


def ceiling(value: Mapping[str, Any], *, as_json: bool, err: bool = False) -> None:
    """The ceiling of a project, what is reached of it, and what raising it means."""
    if as_json:
        print_json(value)
        return
    facts = [_ceiling(value)]
    facts += [(name, budget_of(value[name])) for name in ("reached", "left")]
    if value["raised"]:
        facts.append(
            ("raised to", f"{budget_of(value['raised'])}: only this is promised from then on")
        )
    print_facts(facts, err=err)


def combined(value: Mapping[str, Any], *, as_json: bool) -> None:
    """What several projects cost the same people."""
    if as_json:
        print_json(value)
        return
    rows = table("project", "policies", "costs", "ceiling", right=["policies"])
    for one in value["projects"]:
        costs = budget_of(one) if one["policies"] else "nothing yet"
        rows.add_row(one["project"], f"{one['policies']:,}", costs, budget_of(one["ceiling"]))
    rows.add_row("together", "", budget_of(value), budget_of(value["ceiling"]))
    print_table(rows)
    unit = value["unit"] or "labeler"
    echo(f"For a {unit} who is in all of them, under replace_labels.")


def anchor(value: Mapping[str, Any], *, as_json: bool) -> None:
    """The line to keep."""
    if as_json:
        print_json(value)
        return
    echo(value["anchor"])


def exported(value: Mapping[str, Any], *, as_json: bool) -> None:
    """What was written."""
    if as_json:
        print_json(value)
        return
    rows = ", ".join(f"{name} {count:,}" for name, count in value["rows"].items())
    echo(f"Written to {value['path']}: {rows}.")


def groups(value: Mapping[str, Any], *, as_json: bool) -> None:
    """How many labelers are in groups."""
    if as_json:
        print_json(value)
        return
    added, everyone = counted(value["added"], "labeler"), counted(value["labelers"], "labeler")
    echo(f"{added} added; {everyone} in {counted(value['groups'], 'group')}.")


def check(value: Mapping[str, Any], *, as_json: bool) -> None:
    """What a release of an input would take, and whether it fits."""
    if as_json:
        print_json(value)
        return
    unit = value["unit"]
    fits = "fits" if value["fits"] else f"does not fit: exhausted {unit}s are in it"
    if value["fits"] and value["dropped_by_bound"]:
        fits = "fits, but for labels beyond the bound, which would be left out"
    read, who = (
        f"{value['rows']:,} of {value['rows_read']:,} read",
        counted(value["labelers"], unit),
    )
    facts = [("policy", f"{value['policy']}, {budget_of(value)}"), ("rows", f"{read}, of {who}")]
    if value["refused_rows"]:
        facts.append(("of who left", counted(value["refused_rows"], "row")))
    short = f"{counted(value['exhausted_labelers'], unit)}, {counted(value['short'], 'label')}"
    print_facts(
        [
            *facts,
            ("new labels", f"{value['new']:,}; released before {value['released_before']:,}"),
            ("would charge", f"{value['charged']:,} of {value['left']:,} left to the input"),
            ("beyond the bound", counted(value["dropped_by_bound"], "label")),
            ("exhausted", short),
            ("", f"The input {fits}."),
        ]
    )


def budget(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Policy, allowances, and the total over the project's life."""
    if as_json:
        print_json(value)
        return
    policy = value["policy"]
    if policy is None:
        closed = value["lifetime"]["policies"]
        remedy = "" if closed else "the first privatize fixes one, or make one: "
        echo(f"No policy is in force: {remedy}labelguard policy new")
        if closed:
            print_facts([_total(value["lifetime"]), _ceiling(value)])
        return
    unit = policy["unit"]
    facts = [
        ("policy", f"{policy['name']}: {budget_of(policy)} for each {unit}"),
        ("ties", policy["ties"]),
    ]
    if value["lifetime"]["policies"] > 1:
        facts.append(_total(value["lifetime"]))
    facts.append(_ceiling(value))
    if value["closing"]:
        closing, last = value["closing"], policy["closing_points"]
        facts.append(
            ("closed today", f"at point {closing['point']} of {last}: ε = {closing['epsilon']:.4f}")
        )
    for allowance, used in zip(policy["allowances"], value["allowances"], strict=True):
        facts += [
            ("pays for", _paid(allowance, unit, policy["name"])),
            (f"  {unit}s", f"{used['labelers']:,}, exhausted {used['exhausted_labelers']:,}"),
            ("  used", f"{used['used']:,} of {used['allowed']:,}"),
            (f"  used per {unit}", _quartiles(used["used_per_labeler"])),
            (f"  left per {unit}", _quartiles(used["left_per_labeler"])),
        ]
    print_facts(facts)


def _quartiles(spread: Mapping[str, float]) -> str:
    shown = " / ".join(f"{number:,.0f}" for number in spread.values())
    return f"{shown}  (min / quartiles / max)" if shown else "–"


def labeler(value: Mapping[str, Any], *, as_json: bool) -> None:
    """One labeler's allowances."""
    if as_json:
        print_json(value)
        return
    print_facts([("pseudonym", value["pseudonym"])])
    echo()
    numbers = ("allowed", "used", "left")
    rows = table("policy", "event", *numbers, right=numbers)
    for one in value["allowances"]:
        rows.add_row(one["policy"], one["event"], *(f"{one[name]:,}" for name in numbers))
    print_table(rows)


_UNSEEN = (
    *("files", "settings", "quote", "charges", "prices", "members", "tombstones"),
    *("identities", "distinct", "sources", "columns"),
)
"""What a journal entry holds for `budget verify`, too long for a table."""


def journal(entries: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """The journal, one line an entry."""
    if as_json:
        print_json(entries)
        return
    rows = table("no.", "at", "what", "release", "details", "digest", right=["no."])
    for entry in entries:
        body = {k: v for k, v in entry["body"].items() if k not in _UNSEEN}
        release_id = body.pop("release", "")
        details = ", ".join(f"{name} {number(value)}" for name, value in body.items())
        place, digest = str(entry["number"]), entry["digest"][:12]
        rows.add_row(place, entry["at"], entry["kind"], release_id, details, digest)
    print_table(rows)
