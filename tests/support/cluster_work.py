"""Work for the workers of a cluster, which import it by its name."""

import os
import signal
from pathlib import Path

from labelguard.errors import LabelguardError


def die_once(task: Path, bucket: int) -> int:
    """Die in the middle of the work, the first time."""
    if bucket == 5 and not task.exists():
        task.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return bucket


def refuse(task: str, bucket: int) -> int:
    """Refuse the work, as every worker does that finds something wrong."""
    raise LabelguardError(f"refused: {task}")


def miss(task: Path, bucket: int) -> int:
    """Look for a file that is on another machine."""
    return len((task / "nowhere").read_bytes())
