"""The commands that make and change policies: `policy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

import labelguard as lg
from labelguard.budget.policy import AnyUnit, Policy
from labelguard.budget.request import PolicyRequest
from labelguard.cli.options import HELP, CommandGroup, declared_options
from labelguard.cli.terminal import confirm, echo, print_facts, print_table, prints, wants_json
from labelguard.text import Budgeted, escape_controls, format_budget, pluralize

if TYPE_CHECKING:
    from labelguard.budget.policy import Allowance
    from labelguard.project.policy_facts import (
        Activation,
        Closed,
        PolicyDetails,
        PolicyLine,
        PolicyOverview,
    )


@click.group(cls=CommandGroup, context_settings=HELP)
def policy() -> None:
    """Manage what labelers may lose, and by which events.

    `new` makes a draft and computes its price, `activate` puts it into force, on top of what
    earlier policies cost and up to the project's ceiling; then `privatize` charges it. Without one,
    the first release makes a policy.
    """


# What becomes of a tie.
TIES = {
    "coin": "decided by a fair coin (coin)",
    "zero": "count for neither side (zero)",
    "drop": "left out (drop)",
}
_TURNS = {
    "stop": "",
    "first": "prompts with earlier responses are left out (first)",
    "independent": "declared to go on independently of what was chosen (independent)",
}
_STATES = {"draft": "draft: not in force"}


def _print_policy(value: PolicyDetails) -> None:
    """A policy: what it pays for, and what that costs alone and together."""
    from labelguard.budget import events

    quote, unit = value.quote, value.unit
    facts = [
        ("policy", f"{value.name} ({_STATES.get(value.state, value.state)})"),
        ("budget", f"{format_budget(value)} for each {unit}, under {quote.adjacency}"),
        ("pays for", " and ".join(describe_allowance(one, unit) for one in value.allowances)),
        ("ties", f"{TIES[value.ties]}{', tie status public' * value.tie_status_public}"),
        ("skips", "left out, publicly" if value.skips == "public" else "taken for ties"),
        ("assignment", "reacts to labels" * value.assignment_reactive),
        ("turns", _TURNS[value.turns]),
        ("declared public", ", ".join(map(escape_controls, value.public_columns))),
        ("held out", describe_held_out(value.held_out, unit) if value.held_out else ""),
        ("computed by", f"{quote.accountant}; labelguard {quote.versions['labelguard']}"),
        ("together", _format_joint_price(value) if quote.events else ""),
        ("all policies", _format_activation_cost(value.activation) if value.activation else ""),
    ]
    print_facts((name, text) for name, text in facts if text)
    if not quote.events:
        return
    echo()
    rows: list[tuple[object, ...]] = [
        (
            events.find_event_kind(one.event).noun,
            one.in_words(),
            one.allowed,
            f"{one.epsilon_alone:.4f}",
        )
        for one in quote.events
    ]
    rows.append(("all, in any adaptive order", "", "", f"{quote.epsilon:.4f}"))
    print_table(("event", "noise", "times", "ε alone"), rows, right=("times", "ε alone"))


def describe_held_out(share: float, unit: str) -> str:
    """Return the description of a held-out share, whose labels never train."""
    return f"{100 * share:g}% of {unit}s, by a keyed hash: their labels evaluate and never train"


def _format_joint_price(value: PolicyDetails) -> str:
    quote = value.quote
    unused = max(quote.slack or 0, 0)
    return f"ε = {quote.epsilon:.6f} at δ = {value.delta:g}, unused ε {unused:.1e}"


def _format_activation_cost(value: Activation) -> str:
    """Return what all policies cost once a draft is in force, beside the ceiling."""
    total, ceiling = value.total, value.ceiling
    above = total.epsilon > ceiling.epsilon or total.delta > ceiling.delta
    refused = ": above it, so this draft cannot be put into force" * above
    spent = ", earlier spending included" * (total.epsilon > value.epsilon)
    cost, most = format_budget(total), format_budget(ceiling)
    return f"{cost} once in force{spent}; the ceiling is {most}{refused}"


def describe_allowance(allowance: Allowance, unit: str) -> str:
    """Return what an allowance pays for."""
    text = pluralize(allowance.allowed, allowance.kind.noun)
    if allowance.kind.adjacency == "zero_out":
        return f"{text}, each of all records that a {unit} has in it"
    if allowance.kind.keeps_values:
        text += ", each" if allowance.allowed > 1 else ","
        if allowance.block == 1:
            return f"{text} of a single label"
        return f"{text} of up to {allowance.block:,} new labels of a {unit} in one release"
    ball = f", with ball noise for {allowance.ball} components or more" * bool(allowance.ball)
    return f"{text}, each of any number of labels{ball}"


@policy.command("new", short_help="Make a policy and compute its joint price.")
@click.argument("name")
@click.option("--epsilon", type=float, required=True, help="ε of a labeler, all events together.")
@click.option("--delta", type=float, required=True, help="δ of a labeler, all events together.")
@click.option(
    "--allow",
    multiple=True,
    required=True,
    metavar="EVENT",
    help="rr:uses=K (K releases with new labels of a labeler, which each randomizes together; "
    "props works on them), rr:uses=K,block=B (up to B labels together, more of them are further "
    "uses; 1: each by itself), "
    "statistic:releases=N, or statistic:releases=1,ball=D (ball noise, for D components or more); "
    "uls:runs=N,q=Q,steps=T (training runs: T steps, a labeler in each with probability Q; aup "
    "likewise); els:runs=N,q=Q,steps=T,records=G (of a labeler's labels G, in each step with "
    "probability Q; els-group likewise); records:stages=N,q=Q,steps=T (align with private: "
    "records, --unit user or record: N stages that one of them may be in; updates=K: noised sums "
    "of a cohort); give it once for each.",
)
@click.option(
    "--shares",
    default="",
    show_default=False,
    metavar="EVENT=NUMBER,...",
    help="Weights of the events, for example rr=1,statistic=3; default: each alone would cost "
    "the same ε.",
)
@declared_options(
    PolicyRequest,
    *("ties", "tie_status_public", "skips", "assignment_reactive"),
    *("turns", "public_columns", "accept_unproven", "unit"),
    tie_status_public={"default": False},
    unit={"type": click.Choice(get_args(AnyUnit)), "default": "labeler"},
)
@click.option(
    "--held-out",
    default=0.0,
    metavar="SHARE",
    help="Share of units, 0 to 0.5, whose labels only evaluate (privatize --mechanism "
    "evaluation) and never train; drawn once, so that later policies have the same.",
)
@prints(_print_policy, wait=True)
def policy_new(
    name: str, allow: tuple[str, ...], project: Path | None, **options: Any
) -> PolicyDetails:
    """Make a policy NAME, compute once what all its allowances cost together, and show it.

    It charges nothing until it is activated, and never changes.

    A single statistic release may have ball noise, smaller than Gaussian noise if the statistic has
    few components; a statistic of fewer than D gets the noise of D.

    One use of rr takes any number of new labels of a labeler in one release, up to 16,384.

    \b
    Example:
      labelguard policy new clinic --epsilon 3 --delta 1e-5 --allow rr:uses=4 \\
        --allow statistic:releases=12
      labelguard policy new study --epsilon 1 --delta 1e-5 --allow statistic:releases=1,ball=4
      labelguard policy new hourly --epsilon 3 --delta 1e-5 --allow rr:uses=200,block=1
    """
    return lg.policies.new(name, allow=allow, project=project, **options)


def _print_policies(value: PolicyDetails | PolicyOverview) -> None:
    if isinstance(value, Policy):
        _print_policy(value)
        return
    if value.policy:
        _print_policy(value.policy)
    elif not value.others:
        echo("No policy yet: labelguard policy new makes one, or the first privatize.")
    if value.others:
        echo()
        _print_policy_lines(value.others)


def _print_policy_lines(values: Sequence[PolicyLine]) -> None:
    def format_row(one: PolicyLine) -> tuple[str | None, ...]:
        allowed = ", ".join(f"{event} {count:,}" for event, count in one.allowances.items())
        costs = None if one.costs is None else f"{one.costs:g}"
        state = _STATES.get(one.state, one.state)
        return one.name, state, one.created_at, format_budget(one), allowed, costs

    names = ("name", "state", "created", "budget", "allowances", "costs ε")
    print_table(names, map(format_row, values), right=["costs ε"])
    drafts = [
        (f"{v.name} in force", _format_activation_cost(v.activation))
        for v in values
        if v.activation
    ]
    if drafts:
        echo()
        print_facts(drafts)


@policy.command("show", short_help="A policy with its price; without a name: all policies.")
@click.argument("name", required=False)
@prints(_print_policies, project=True)
def policy_show(name: str | None, project: Path | None) -> PolicyDetails | PolicyOverview:
    """A policy with its price. Without a name, the one in force, and a line on each of the others.

    \b
    Example:
      labelguard policy show
      labelguard policy show clinic
    """
    if name is None:
        from labelguard.project.policies import show_all

        return show_all(project)
    return lg.policies.show(name, project)


def _print_activation_effect(value: Activation, *, err: bool) -> None:
    """Print the effect of an activation, before it is confirmed; `err`: on standard error."""
    facts = [("activates", f"{value.activates}, {format_budget(value)} for each {value.unit}")]
    if closes := value.closes:
        price = f"at its full price, used or not: {format_budget(closes)}"
        facts.append(("closes", f"{closes.name}, {price}"))
    facts.append(format_total_fact(value.total))
    print_facts([*facts, format_ceiling_fact(value.ceiling)], err=err)


def format_total_fact(total: Budgeted) -> tuple[str, str]:
    """Return what all policies cost together, as a fact."""
    return "total", f"{format_budget(total)} over the project's life, however policies were chosen"


def format_ceiling_fact(ceiling: Budgeted) -> tuple[str, str]:
    """Return the ceiling as a fact."""
    return "ceiling", f"{format_budget(ceiling)}, for all policies together"


def _print_activated(value: Activation) -> None:
    echo(f"Policy {value.activates} is in force.")


@policy.command("activate", short_help="Put a policy into force, after showing the total.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@prints(_print_activated, wait=True)
def policy_activate(name: str, yes: bool, project: Path | None) -> Activation:
    """Put policy NAME into force; shows what all policies then cost together, and asks.

    The policy in force before is closed and stays paid in full, used or not.

    \b
    Example:
      labelguard policy activate clinic --yes
    """
    shown = lg.policies.preview(name, project)
    if not (wants_json() and yes):
        _print_activation_effect(shown, err=wants_json())
    if not yes:
        confirm("Put it into force?")
    return lg.policies.activate(name, project, agreed=shown)


def _print_closed(value: Closed) -> None:
    if value.epsilon:
        echo(f"Policy {value.name} is closed at its full price: {format_budget(value)}.")
    else:
        echo(f"Policy {value.name}, which was never in force, is removed.")


@policy.command("close", short_help="End the policy in force, or remove a draft.")
@click.argument("name", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@prints(_print_closed, wait=True)
def policy_close(name: str | None, yes: bool, project: Path | None) -> Closed:
    """Close the policy in force: nothing more can be charged to it.

    It stays paid in full, used or not. Releases stay what they are. NAME may be a draft, which is
    removed and costs nothing; the journal records this.

    \b
    Example:
      labelguard policy close --yes
    """
    if not yes:
        confirm(f"Close {f'policy {name}' if name else 'the policy in force'}, for good?")
    return lg.policies.close(name, project)
