"""Commands run under limits of memory and disk, and what they took of both."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_RUN = "from labelguard.cli import main; main(prog_name='labelguard')"
_ADDRESSES = 8 << 30


@dataclass(frozen=True)
class Outcome:
    """How a command ended: exit code, standard error, and its largest resident memory in bytes."""

    code: int
    err: str
    peak: int

    def refused_in_one_line(self) -> bool:
        """Whether it ended with an error in one line."""
        return self.code == 1 and self.err.startswith("labelguard: ") and self.err.count("\n") == 1


def run(directory: Path, *arguments: str | Path, seconds: int = 120, disk: int = 1 << 30) -> Outcome:
    """Run `labelguard` in a process of its own: `disk` bounds each file that it writes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk, disk))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    with (directory / "stderr").open("w+b") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN, *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=err,
            preexec_fn=limit,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return Outcome(process.returncode, err.read().decode(), usage.ru_maxrss << 10)


def size(directory: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
