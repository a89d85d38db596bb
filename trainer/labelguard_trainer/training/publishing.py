"""A trained model leaves: to the Hub, S3 or a directory, with its card as README.md."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labelguard.errors import LabelguardError
from labelguard.release.model_card import RAW, read_card_matter
from labelguard.release.writer import read_sums
from labelguard.storage.destinations import PublicFile, send_files
from labelguard.storage.files import SUMS, find_changed_file, sums_text
from labelguard.text import Progress, no_progress
from labelguard_trainer.training.rows import RawLabels

_CARD, _ADAPTER, _BASE = "TRAINING_CARD.md", "adapter_config.json", "base_model_name_or_path"
_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")


@dataclass(frozen=True)
class PublishedModel:
    """A model that was published."""

    # its directory
    model: str
    # where it is
    where: str


def publish_model(
    model: str | Path,
    to: str | Path,
    *,
    base: str | None = None,
    public: bool = False,
    non_private: bool = False,
    progress: Progress = no_progress,
) -> PublishedModel:
    """Publish a directory that `train` wrote, as it was written, and its card as README.md.

    `to` is `hf:ORG/NAME` (a model of the Hugging Face Hub, private unless `public`),
    `s3://BUCKET/PREFIX` or a new directory. `base` is the id by which others find the base model;
    an adapter that was trained on a directory needs it, and has it in place of that path. Again, it
    changes nothing; on the Hub another model takes the place of the one before.

    Raises `RawLabels` for a model without a guarantee unless `non_private`, and `LabelguardError`
    for a directory with other files than those written, and where `to` cannot take them.
    """
    directory = Path(model)
    expected = read_sums(directory, (_CARD,), "only what labelguard train wrote is published")
    if broken := find_changed_file(directory, expected):
        raise LabelguardError(f"{broken}; nothing was published")
    matter = read_card_matter(directory / _CARD)
    if matter is None or (matter["labelguard"]["learned_from"] == RAW and not non_private):
        raise RawLabels(
            f"{directory} was trained on raw labels: what people said may be read from it; to "
            "publish it without any guarantee: --non-private"
        )
    if base is None and _ADAPTER in expected and "base_model" not in matter:
        raise LabelguardError(
            f"{directory} is an adapter of a model in a directory; name the one that others have: "
            "--base ORG/NAME"
        )
    files = {name: PublicFile(directory / name, digest) for name, digest in expected.items()}
    with TemporaryDirectory(prefix="labelguard-") as scratch:
        if base is not None:
            files |= _on_base(directory, base, Path(scratch), adapter=_ADAPTER in expected)
        text = sums_text({name: file.sha256 for name, file in files.items()}).encode("ascii")
        files[SUMS] = _write(Path(scratch) / SUMS, text)
        files["README.md"] = files[_CARD]
        title = f"Model of {', '.join(_releases(matter)) or 'public texts'}"
        where = send_files(files, str(to), "model", title=title, public=public, progress=progress)
    return PublishedModel(str(directory), where)


def _on_base(
    directory: Path, base: str, scratch: Path, *, adapter: bool
) -> Mapping[str, PublicFile]:
    """Return the files that name the base model, written anew with the id that others have."""
    if not _MODEL_ID.fullmatch(base) or Path(base).exists():
        raise LabelguardError(f"--base: expected the id of a model on the Hub, found {base!a}")
    card = (directory / _CARD).read_text(encoding="utf-8").removeprefix("---\n")
    lines = [line for line in card.splitlines(keepends=True) if not line.startswith("base_model:")]
    text = f"---\nbase_model: {json.dumps(base)}\n{''.join(lines)}"
    files = {_CARD: _write(scratch / _CARD, text.encode())}
    if adapter:
        config = json.loads((directory / _ADAPTER).read_bytes())
        content = json.dumps({**config, _BASE: base}, indent=2).encode()
        files[_ADAPTER] = _write(scratch / _ADAPTER, content)
    return files


def _write(path: Path, content: bytes) -> PublicFile:
    path.write_bytes(content)
    return PublicFile(path, hashlib.sha256(content).hexdigest())


def _releases(matter: Mapping[str, Any]) -> list[str]:
    """Return the releases that a model is a function of, or that it is one of raw labels."""
    learned = matter["labelguard"]["learned_from"]
    return [RAW] if learned == RAW else [str(entry.release) for entry in learned]
