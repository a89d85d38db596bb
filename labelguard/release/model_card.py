"""Cards of trained models: the releases, or raw labels, that a model is a function of.

The front matter of a trained model's card names its releases:

    labelguard:
      learned_from:
      - {release: r0001-…, sums: SHA-256 of SHA256SUMS, epsilon: 8.0, delta: 1.0e-05, unit: labeler,
         adjacency: replace_labels}

Of a model that was trained on raw labels `learned_from` is `raw labels`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labelguard.errors import LabelguardError
from labelguard.learning.columns import parse_feature_columns
from labelguard.release.writer import check_committed_and_unchanged, read_card
from labelguard.storage.files import SUMS, hash_file

RAW = "raw labels"
_CARDS = ("TRAINING_CARD.md", "README.md")


@dataclass(frozen=True)
class LearnedRelease:
    """A release that a model is a function of; `sums` is the SHA-256 of its `SHA256SUMS`.

    Its price adds to others under the same `adjacency`, and to no other.
    """

    release: str
    sums: str
    epsilon: float
    delta: float
    unit: str
    adjacency: str


def list_learned_releases(card: Mapping[str, Any], sums: str) -> tuple[LearnedRelease, ...]:
    """Return a release by its card, and then others that it, or its models, are functions of."""
    privacy = card["privacy"]
    price = (privacy[name] for name in ("epsilon", "delta", "unit", "adjacency"))
    others = (LearnedRelease(**entry) for entry in card.get("learned_from", ()))
    return (LearnedRelease(card["release"], sums, *price), *others)


def find_learned_releases(model: str, *, private: bool) -> tuple[LearnedRelease, ...]:
    """Return the releases that a base model learned from; of one release, its own comes first.

    Only a directory can tell, by the card in it or, as the `model` of a release, by the release's;
    an adapter without a card is what the model below it is. Nothing is known of a hub's model, nor
    of a copy without its card. Raises `LabelguardError` for a card that cannot be read and, if
    `private`, for a model that learned from raw labels: nothing that is done with it protects
    anybody.
    """
    directory, seen = Path(model).resolve(), set[Path]()
    while directory.is_dir() and directory not in seen:
        seen.add(directory)
        release = directory.parent
        if directory.name == "model" and (release / SUMS).is_file():
            check_committed_and_unchanged(release)
            return list_learned_releases(read_card(release), hash_file(release / SUMS))
        for card in (directory / name for name in _CARDS):
            matter = read_front_matter(card) if card.is_file() else None
            if matter is None:
                continue
            learned = matter["labelguard"]["learned_from"]
            if learned == RAW and private:
                raise LabelguardError(
                    f"{directory} was trained on raw labels, says its {card.name}: what is trained "
                    "on it has no guarantee; begin from its own base model"
                )
            return () if learned == RAW else tuple(learned)
        directory = _find_base_model_directory(directory)
    return ()


def find_releases_of_settings(settings: Mapping[str, Any]) -> list[LearnedRelease]:
    """Return the releases that the models of a mechanism's settings learned from, each once: the
    models of its features, and the one that it begins from.
    """
    parts = (settings.get("features") or "").split("+")
    models = [
        part.partition(":")[2].split(",")[0] for part in parts if not parse_feature_columns(part)
    ]
    models = [model.removeprefix("model=").strip() for model in models]
    every = [
        find_learned_releases(one, private=False) for one in (*models, settings.get("model")) if one
    ]
    return list({one.sums: one for learned in every for one in learned}.values())


def _find_base_model_directory(directory: Path) -> Path:
    """Return where the model is that an adapter changes; for any other model, its own place."""
    try:
        settings = json.loads((directory / "adapter_config.json").read_bytes())
        return Path(settings["base_model_name_or_path"]).resolve()
    except (OSError, ValueError, KeyError, TypeError):
        return directory


def front_matter(learned: tuple[LearnedRelease, ...], model: str) -> str:
    """Return the lines of a card's front matter that say so; without releases, raw labels.

    A base `model` of a hub is named; a directory is nobody else's business.
    """
    import yaml

    matter: dict[str, Any] = {} if Path(model).exists() else {"base_model": model}
    matter["labelguard"] = {"learned_from": [asdict(release) for release in learned] or RAW}
    return str(yaml.safe_dump(matter, sort_keys=False))


def read_front_matter(card: Path) -> dict[str, Any] | None:
    """Return a card's front matter, which says what the model learned from; None of another card.

    Raises `LabelguardError` for one that does not say it.
    """
    import yaml

    try:
        text = card.read_text(encoding="utf-8").partition("---\n")[2].partition("\n---\n")[0]
        if "labelguard" not in text:
            return None
        matter: dict[str, Any] = yaml.safe_load(text)
        learned = matter["labelguard"]["learned_from"]
        if "non-private" in matter["tags"]:
            learned = RAW
        if learned != RAW:
            learned = [LearnedRelease(**entry) for entry in learned]
        return {**matter, "labelguard": {"learned_from": learned}}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        raise LabelguardError(
            f"{card} does not say what the model learned from; take the card it was trained with"
        ) from None
