"""Commands run under limits of memory, time and disk, and what they took."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Measured from inside: what the system reports of a child includes its parent, before the exec.
_RUN = """
import atexit, re, sys
from pathlib import Path
def note(path=sys.argv.pop(1)):
    status = Path("/proc/self/status").read_text()
    Path(path).write_text(re.search(r"VmHWM:\\s*(\\d+)", status)[1])
atexit.register(note)
from labelguard.cli.main import main
main(prog_name="labelguard")
"""
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


def run(directory: Path, *arguments: str | Path, seconds: int = 60, disk: int = 1 << 30) -> Outcome:
    """Run `labelguard` in a process of its own, with `directory` as working directory.

    `seconds` bounds its time on processors, `disk` the bytes of each file that it writes.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk, disk))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    note = directory / "peak"
    note.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(note), *map(str, arguments)],
        cwd=directory,
        env=os.environ | {"COLUMNS": "200"},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    peak = int(note.read_text()) << 10 if note.exists() else 1 << 62
    return Outcome(done.returncode, done.stderr, peak)


def size(directory: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
