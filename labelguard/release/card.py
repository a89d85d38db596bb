"""The card of a release: what was done, what it guarantees, what it does not protect."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labelguard._version import __version__
from labelguard.budget.policy import Policy
from labelguard.inputs.staged import Staged
from labelguard.learning.features import JUDGES
from labelguard.ledger.records import ReleaseRecord
from labelguard.ledger.sources import CODING
from labelguard.release import sections
from labelguard.release.sections import format_min_median_max
from labelguard.release.selection import PlannedRows
from labelguard.text import (
    FORECAST_ASSUMPTION,
    escape_controls,
    format_budget,
    pluralize,
    read_template,
)

if TYPE_CHECKING:
    import jinja2

NOT_PROTECTED = (
    "who labelled what, when and how much, and how often somebody submitted again",
    "which annotations were discarded (they are not part of the input)",
    "prompts and responses, above all if they came from a model trained on raw labels; they are "
    "published as they are, with all personal data in them",
    "one person who labels under several ids that nobody linked: each id is protected by itself",
    "a labeler's identity outside the project",
    "labelers whose labels are correlated with one another's",
    "anything against the curator, who sees raw labels, and whoever reads a running job's memory",
    "raw exports made before or beside labelguard",
)
LINKABLE = (
    "which rows are one labeler's, where flip_probability (or an estimate made from it) differs "
    "between labelers: it grows with the number of labels that a release drew of one together"
)
PARAPHRASES = (
    "paraphrases, regenerated responses and parts of rankings: each is a content of its own, "
    "with a budget of its own"
)
TIE_STATUS_PUBLIC = "which labels are ties (declared public with --tie-status-public)"
SKIP_STATUS_PUBLIC = "which annotations were skipped (--skips public)"
NOT_REACTIVE = "assignment of items to labelers that reacts to raw labels"
REACTIVE = (
    "labels that decided who labels what: assignment reacts here (--assignment-reactive), and the "
    "guarantee holds only as far as it reacts to releases, not to raw labels"
)

CONVERSATIONS = (
    "labels that decided how a conversation went on: prompts may contain responses of other items, "
    "which were declared to be there independently of what was chosen (--turns independent)"
)


def describe_joint_price(policy: Policy, event: str) -> str:
    """Return with what else an event is priced, for the line on accounting; empty if alone."""
    rest = [allowance for allowance in policy.allowances if allowance.event != event]
    parts = [pluralize(other.allowed or 0, other.kind.noun) for other in rest]
    return f", priced together with {' and '.join(parts)} per {policy.unit}" if parts else ""


def list_not_protected(policy: Policy) -> list[str]:
    """Return the list that every card carries."""
    declared = (
        (True, REACTIVE if policy.assignment_reactive else NOT_REACTIVE),
        (policy.turns == "independent", CONVERSATIONS),
        (policy.unit == "item", PARAPHRASES),
        (policy.skips == "public", SKIP_STATUS_PUBLIC),
        (policy.tie_status_public, TIE_STATUS_PUBLIC),
    )
    return [*NOT_PROTECTED, *(line for holds, line in declared if holds)]


def build_common_card(
    staged: Staged,
    policy: Policy,
    plan: PlannedRows,
    release: ReleaseRecord,
    rows: int,
    further: int,
) -> dict[str, Any]:
    """Return the parts that cards of all mechanisms have; `further` pairs were labeled beside."""
    forecast, judges = (release.settings.get(name) for name in ("forecast", "judges"))
    return {
        "release": release.id,
        "labelguard": __version__,
        "format": 1,
        "created_at": release.created_at,
        "kind": "labels",
        "mechanism": release.settings["mechanism"],
        "mechanism_version": release.settings["mechanism_version"],
        "privacy": {
            "epsilon": policy.epsilon,
            "delta": policy.delta,
            "unit": policy.unit,
            "adjacency": "replace_labels",
            "accounting": "",
            "ties": policy.ties_of(release.event),
            "tie_status_public": policy.tie_status_public,
            "skip_status": "public" if policy.skips == "public" else "protected",
            "assignment": "reactive" if policy.assignment_reactive else "fixed",
            "turns": release.settings.get("turns", policy.turns),
            "public_columns": list(policy.public_columns),
            "held_out": policy.held_out,
        },
        "reading": {
            "formats": sorted(staged.formats),
            **{
                ("label_values" if role.startswith(CODING) else role): name
                for role, name in sorted(staged.columns.items())
            },
        },
        "counts": {
            "rows_read": staged.rows_read,
            "rows": rows,
            "labelers": len(plan.units),
            "charged": release.charged,
            "released_before": plan.rows - (release.drawn or 0),
            "further_pairs": further,
            "of_other_part": {"units": plan.other_units, "labels": plan.other_labels},
            "dropped_by_bound": plan.over_bound,
            "beyond_allowance": plan.over_allowance,
            "duplicates": plan.duplicates,
            "identical_sides": staged.identical_sides,
            "skipped": staged.skipped,
            "set_aside": staged.fault_count,
            **({"left_out": dict(staged.left_out)} if staged.left_out else {}),
            # An item, as a unit, has nobody's labels.
            **({} if policy.unit == "item" else {"unit_pairs": plan.unit_pairs}),
        },
        **({"forecast": forecast} if forecast else {}),
        **({"judges": judges} if judges else {}),
        "train_with": "",
        "not_protected": list_not_protected(policy),
    }


_FIRST = (
    *("release", "labelguard", "format", "created_at", "kind"),
    *("mechanism", "mechanism_version", "privacy", "reading", "counts"),
)
_LAST = ("budget", "train_with", "not_protected")


def merge_cards(common: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return a card with added sections; those of one name are joined."""
    card = dict(common)
    for name, value in added.items():
        if isinstance(value, Mapping):
            card[name] = {**card.get(name, {}), **value}
        elif isinstance(value, list):
            card[name] = [*card.get(name, []), *value]
        else:
            card[name] = value
    between = [name for name in card if name not in _FIRST + _LAST]
    return {name: card[name] for name in (*_FIRST, *between, *_LAST) if name in card}


def compute_min_median_max(values: NDArray[Any]) -> dict[str, float]:
    """Return minimum, median and maximum; empty without values."""
    if not len(values):
        return {}
    low, high = float(values.min()), float(values.max())
    return {"min": low, "median": float(np.median(values)), "max": high}


def format_json(card: Mapping[str, Any]) -> str:
    """Return the card as it is stored."""
    return json.dumps(card, indent=2, ensure_ascii=False) + "\n"


def format_markdown(card: Mapping[str, Any]) -> str:
    """Return the card for people, with the front matter of a Hugging Face dataset card."""
    rows = (*_list_reading_facts(card), *list_facts(card), *list_forecast_facts(card))
    values = _collect_template_values(card)
    return fill_block("page", facts=rows, metadata=_format_guarantee_yaml(card), **values) + "\n"


def check_page(common: Mapping[str, Any], features: str) -> None:
    """Render the page of a card with `common` parts for releases of every kind.

    Called before anything is charged: a template that fails, fails here. What mechanisms and the
    ledger add later is made up.
    """
    later = {
        "privacy": {"policy": "", "ceiling": {"epsilon": 1.0, "delta": 0.0}, "two_units": None},
        "head": {"features": features},
    }
    card = merge_cards(common, later)
    for kind, loss in product(("labels", "teacher", "evaluation"), ("forward", "soft", "plain")):
        values = _collect_template_values(card | {"kind": kind, "train_with": loss})
        fill_block("page", facts=(), metadata="", **values)


def _format_guarantee_yaml(card: Mapping[str, Any]) -> str:
    """Return the guarantee for programs, as lines of YAML."""
    import yaml

    privacy = card["privacy"]
    values = {name: card[name] for name in ("release", "mechanism")}
    values |= {name: privacy[name] for name in ("epsilon", "delta", "unit", "adjacency")}
    return str(yaml.safe_dump({"labelguard": values}, sort_keys=False))


def format_guarantee(card: Mapping[str, Any]) -> str:
    """Return the guarantee of a release, and of whatever is computed from it, in Markdown."""
    return fill_block("guarantee", **_collect_template_values(card))


def _collect_template_values(card: Mapping[str, Any]) -> dict[str, Any]:
    privacy = card["privacy"]
    features = str(card.get("head", {}).get("features", ""))
    judges = [part for part in features.split("+") if part.startswith(JUDGES)]
    parts = {"card": card, "privacy": privacy, "columns": privacy["public_columns"]}
    return parts | {"train_with": card["train_with"], "judges": judges}


def fill_block(block: str, **values: Any) -> str:
    """Return a block of card.md.j2, filled with `values`: page, guarantee, training, …"""
    template = _load_template()
    return "".join(template.blocks[block](template.new_context(values))).strip()


@cache
def _load_template() -> jinja2.Template:
    filters = {
        "budget": format_budget,
        "plain": _escape_markdown,
        "round_up_epsilon": round_up_epsilon,
        "shown": escape_controls,
        "describe_covered_releases": describe_covered_releases,
    }
    return read_template(files(__package__) / "card.md.j2", filters)


def _escape_markdown(text: str) -> str:
    """Return text in which names of columns, files and models cannot become links or HTML."""
    return re.sub(r"([\\`<>\[\]|])", r"\\\1", escape_controls(text))


def round_up_epsilon(epsilon: float) -> str:
    """Return an ε with two decimals, never less than it is."""
    return f"{math.ceil(epsilon * 100) / 100:g}"


def describe_covered_releases(privacy: Mapping[str, Any]) -> str:
    """Return for which releases the guarantee of a card holds; later policies add to it."""
    if "newly_charged" in privacy:
        return f"all releases of all policies up to {privacy['policy']}"
    return f'all releases under policy "{privacy["policy"]}"'


def list_facts(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the counts of a card as names and values; what is part of another row is indented.

    A fact of the mechanism under the name of a row takes its place; its other facts follow.
    """
    budget = card["budget"]
    of_mechanism = (fact for section in sections.load_card_sections(card) for fact in section.facts)
    yield from (dict(_list_count_facts(card)) | dict(of_mechanism)).items()
    yield "allowance used", format_min_median_max(budget["used"], ",.0f")
    yield "allowance left", format_min_median_max(budget["left"], ",.0f")


def _list_reading_facts(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield which columns were read, and by which coding of labels, if the card says it."""
    if reading := dict(card.get("reading", {})):
        formats, coding = ", ".join(reading.pop("formats")), reading.pop("label_values", None)
        columns = ", ".join(f"{role} = {name}" for role, name in reading.items())
        yield "read as", f"{formats}: {columns}"
        if coding:
            yield "label values", coding


def list_forecast_facts(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a release was expected to be worth, if that was simulated before it."""
    if forecast := card.get("forecast"):
        wrong, right = (forecast[name]["mean"] for name in ("label_error", "accuracy"))
        yield (
            "forecast",
            f"about {100 * wrong:.0f} of 100 labels differ from what the labeler said; a model "
            f"that learns from them agrees with about {100 * right:.0f} of 100 new labels; "
            f"simulated before any label was read: {FORECAST_ASSUMPTION}",
        )


def _list_count_facts(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the counts of cards of all mechanisms."""
    counts, unit = card["counts"], card["privacy"]["unit"]
    yield f"{unit}s", f"{counts['labelers']:,}"
    if card["kind"] == "models":
        yield "records", f"{counts['rows_read']:,}, of which none is released"
        yield "  newly charged", pluralize(counts["charged"], "stage")
        return
    in_training = "training" in card
    if in_training or card["kind"] == "evaluation":
        yield "labels", f"{counts['rows_read']:,} read, of which none is released"
    else:
        yield "labels", f"{counts['rows']:,} released of {counts['rows_read']:,} read"
    if in_training:
        yield "  pairs", f"{counts['rows']:,} (labeled by the model)"
    if (other := counts.get("of_other_part")) and other["labels"]:
        why = "not held out" if card["kind"] == "evaluation" else "held out"
        who = pluralize(other["units"], unit)
        yield "  left out", f"{other['labels']:,} of {who} ({why})"
    if counts["further_pairs"]:
        yield "  further pairs", f"{counts['further_pairs']:,} (labeled by the teacher)"
    yield "  newly charged", pluralize(counts["charged"], "use")
    if not in_training:
        yield "  released before", f"{counts['released_before']:,} (same value, no charge)"
    beyond = counts.get("beyond_allowance", 0)
    yield "  dropped by the bound", f"{counts['dropped_by_bound'] - beyond:,}"
    if beyond:
        yield "  beyond the allowance", f"{beyond:,} (left out)"
    yield "  duplicates", f"{counts['duplicates']:,}"
    yield "  identical sides", f"{counts['identical_sides']:,}"
    if counts["skipped"]:
        yield "  skipped", f"{counts['skipped']:,} (left out)"
    if counts["set_aside"]:
        yield "  bad rows", f"{counts['set_aside']:,} (set aside)"
    for reason, count in counts.get("left_out", {}).items():
        yield f"  {reason}", f"{count:,} (left out)"
    if pairs := counts.get("unit_pairs"):  # of an item, as a unit, there are none
        yield "  with oneself", f"{pairs:,} pairs of labels of one item are of one {unit}"
