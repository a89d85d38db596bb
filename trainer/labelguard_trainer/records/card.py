"""The card of an alignment on whole records, and its models with a card each; all of it public."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelguard._version import __version__
from labelguard.budget.events import RECORDS
from labelguard.budget.policy import Policy
from labelguard.ledger.ledger import Grant
from labelguard.project import policy_facts
from labelguard.project.opening import OpenProject
from labelguard.release import card as cards
from labelguard.release.model_card import LearnedRelease, front_matter
from labelguard.text import escape_controls, format_budget, pluralize, read_template
from labelguard_trainer.gradient.mechanism import DISCRETE
from labelguard_trainer.records.people import People
from labelguard_trainer.records.stages import RecordStage
from labelguard_trainer.training.settings import StageName, hide_directory

_TEMPLATE = Path(__file__).with_name("records_card.md.j2")
_NOT_PROTECTED = (
    "who takes part, in which part of the data, and with how many records",
    "one person under several ids that were not linked",
    "people whose records repeat, or tell of, one another's",
    "whether a record is that one or another: neighbours differ in records that are there or null, "
    "and two who are both there take two steps of that",
    "what the base model, and a public reward, know from elsewhere",
    "how long a run took, for who watched it",
    "anything against the curator, who sees the records, and whoever reads a running job's memory",
    DISCRETE,
)


def facts(
    opened: OpenProject,
    policy: Policy,
    grant: Grant,
    people: People,
    stages: Mapping[StageName, RecordStage],
) -> dict[str, Any]:
    """Return the card: what was done and promised, from public values alone."""
    release, unit, ledger = grant.release, policy.unit, opened.ledger
    allowance = policy.allowance(RECORDS.name)
    [price] = grant.prices.values()
    capacity, used = ledger.releases.labelers(RECORDS.name).find_usage(people.units)
    several = "adaptive composition" if allowance.allowed > 1 else "parallel composition"
    return {
        "release": release.id,
        "labelguard": __version__,
        "format": 1,
        "created_at": release.created_at,
        "kind": "models",
        "mechanism": release.settings["mechanism"],
        "mechanism_version": release.settings["mechanism_version"],
        "privacy": {
            "epsilon": policy.epsilon,
            "delta": policy.delta,
            "unit": unit,
            "adjacency": policy.adjacency,
            "accounting": f"Poisson-subsampled Gaussian mechanism over {unit}s, privacy loss "
            f"distribution, {pluralize(allowance.allowed, 'stage')} per {unit} ({several})",
            "public_columns": [],
            **policy_facts.collect_policy_card_facts(ledger),
        },
        "counts": {
            "rows_read": sum(len(part.unit) for part in people.parts),
            "labelers": len(people.units),
            "charged": release.charged,
            "rows": 0,
        },
        "training": {
            **{name: price[name] for name in ("noise_multiplier", "sampling_probability")},
            "updates": price["updates"],
            "stages": [
                {
                    "stage": part.name,
                    "people": len(part.people),
                    "records": len(part.unit),
                    "steps": price["steps"],
                    "base": hide_directory(stages[part.name].model),
                    "clip": stages[part.name].clip,
                    "records_a_step": stages[part.name].records,
                    "lora": stages[part.name].lora and dict(stages[part.name].lora or {}),
                    "settings": dict(stages[part.name].config) | {"model_init_kwargs": {}},
                }
                for part in people.parts
            ],
        },
        "budget": {
            "used": cards.compute_min_median_max(used),
            "left": cards.compute_min_median_max(capacity - used),
        },
        "train_with": "",
        "not_protected": list(_NOT_PROTECTED),
        "sums": release.idempotency_key,
    }


def copy_models_with_cards(
    work: Path, finished: Sequence[Path | None], facts: Mapping[str, Any], model: str
) -> list[Path]:
    """Copy finished models into a directory, with a card each, and the card of all; return them.

    `model` is what the first of them began from.
    """
    template = read_template(_TEMPLATE, {"budget": format_budget, "shown": escape_controls})
    privacy, sums = facts["privacy"], facts["sums"]
    own = {name: value for name, value in facts.items() if name != "sums"}
    terms = (privacy[name] for name in ("epsilon", "delta", "unit", "adjacency"))
    before = (LearnedRelease(**one) for one in facts.get("learned_from", ()))
    matter = front_matter((*before, LearnedRelease(facts["release"], sums, *terms)), model)
    paths = []
    for stage, path in zip(facts["training"]["stages"], finished, strict=True):
        assert path is not None
        paths.append(Path(shutil.copytree(path, work / path.name)))
        text = template.render(card=own, privacy=privacy, matter=matter, one=stage)
        (paths[-1] / "TRAINING_CARD.md").write_text(text, encoding="utf-8")
    text = template.render(card=own, privacy=privacy, matter=matter, one=None)
    (work / "CARD.md").write_text(text, encoding="utf-8")
    (work / "card.json").write_text(cards.format_json(own), encoding="utf-8")
    return [*paths, work / "CARD.md", work / "card.json"]
