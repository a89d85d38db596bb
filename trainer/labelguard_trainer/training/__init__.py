"""Training on releases: losses that know each row's noise, TRL trainers, reward models.

`check` is called before anything heavy is loaded: the trainers stand on a range of TRL.
"""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version

from labelguard import extras
from labelguard.errors import LabelguardError

TRL = ("1.16", "1.17")


def check() -> None:
    """Raises `MissingExtra` without the extra `train`, and `LabelguardError` for another TRL."""
    extras.require("train", "training")
    check_trl(version("trl"))


def check_trl(found: str) -> None:
    """Our trainers override what TRL keeps private, which changes with its minor version."""
    least, below = TRL
    if not Version(least) <= Version(found) < Version(below):
        raise LabelguardError(
            f"trl {found} is installed; the trainers need trl>={least},<{below}: "
            f"{extras.install_line('train')}"
        )
