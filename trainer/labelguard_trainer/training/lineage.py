"""What a model learned from, as the card beside it says: a guarantee has to cover its base too.

The front matter of a trained model's card names the releases that it is a function of:

    labelguard:
      learned_from:
      - {release: r0001-…, sums: SHA-256 of SHA256SUMS, epsilon: 8.0, delta: 1.0e-05, unit: labeler}

Of a model that was trained on raw labels `learned_from` is `raw labels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labelguard.errors import LabelguardError
from labelguard.release.writer import read_card
from labelguard.storage.sums import SUMS, sha256

__all__ = ["Learned", "base_of", "front_matter", "released"]

_RAW = "raw labels"
_CARDS = ("TRAINING_CARD.md", "README.md")


@dataclass(frozen=True)
class Learned:
    """A release that a model is a function of; `sums` is the SHA-256 of its `SHA256SUMS`."""

    release: str
    sums: str
    epsilon: float
    delta: float
    unit: str


def released(card: Mapping[str, Any], sums: str) -> Learned:
    """A release by its card."""
    privacy = card["privacy"]
    return Learned(
        card["release"], sums, privacy["epsilon"], privacy["delta"], str(privacy["unit"])
    )


def base_of(model: str, *, private: bool) -> tuple[Learned, ...]:
    """The releases that a base model learned from, oldest first.

    Only a directory can tell, by the card in it or, as the `model` of a release, by the release's:
    nothing is known of a hub's model, nor of a copy without its card. Raises `LabelguardError` for
    a card that cannot be read and, if `private`, for a model that learned from raw labels: nothing
    that is done with it protects anybody.
    """
    directory = Path(model)
    release = directory.absolute().parent
    if directory.is_dir() and directory.name == "model" and (release / SUMS).is_file():
        return (released(read_card(release), sha256(release / SUMS)),)
    for card in (directory / name for name in _CARDS):
        said = _learned_from(card) if card.is_file() else None
        if said == _RAW and private:
            raise LabelguardError(
                f"{model} was trained on raw labels, says its {card.name}: what is trained on it "
                "has no guarantee; begin from its own base model"
            )
        if said is not None:
            return () if said == _RAW else _parsed(said, card)
    return ()


def front_matter(learned: tuple[Learned, ...]) -> str:
    """The lines of a card's front matter that say so; without releases, raw labels."""
    import yaml

    said = [asdict(one) for one in learned] or _RAW
    return str(yaml.safe_dump({"labelguard": {"learned_from": said}}, sort_keys=False))


def _learned_from(card: Path) -> Any:
    """What a card's front matter says; None for a card of something else."""
    import yaml

    try:
        matter = card.read_text(encoding="utf-8").partition("---\n")[2].partition("\n---\n")[0]
        if "labelguard" not in matter:
            return None
        said = yaml.safe_load(matter)
        if "non-private" in said["tags"]:
            return _RAW
        return said["labelguard"]["learned_from"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        raise _unreadable(card) from None


def _parsed(said: Any, card: Path) -> tuple[Learned, ...]:
    try:
        return tuple(Learned(**one) for one in said)
    except TypeError:
        raise _unreadable(card) from None


def _unreadable(card: Path) -> LabelguardError:
    return LabelguardError(
        f"{card} does not say what the model learned from; take the card it was trained with"
    )
