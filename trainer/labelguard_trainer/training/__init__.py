"""Training on releases: losses that know each row's noise, TRL trainers, reward models.

`check_installation` is called before anything heavy is loaded: the trainers need a version of TRL.
"""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version

from labelguard import extras
from labelguard.errors import LabelguardError

TRL = ("1.16", "1.17")


def check_installation() -> None:
    """Raise `MissingExtra` without the extra `train`, and `LabelguardError` for another TRL."""
    extras.require_extra("train", "training")
    check_trl_version(version("trl"))


def check_trl_version(installed: str) -> None:
    """Raise `LabelguardError` for a TRL that the trainers do not fit.

    They override what TRL keeps private, which changes with its minor version."""
    least, below = TRL
    if not Version(least) <= Version(installed) < Version(below):
        raise LabelguardError(
            f"trl {installed} is installed; the trainers need trl>={least},<{below}: "
            f"{extras.format_install_line('train')}"
        )
