"""Commands run under limits of memory, time and disk, and what they took.

Each has a process of its own, forked from one that has imported everything and done nothing else:
most of these commands take less than a start of Python.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import resource
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

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
    job = {
        "arguments": [str(argument) for argument in arguments],
        "directory": str(directory),
        "environment": os.environ | {"COLUMNS": "200"},
        "limits": {
            resource.RLIMIT_AS: _ADDRESSES,
            resource.RLIMIT_FSIZE: disk,
            resource.RLIMIT_CPU: seconds,
        },
    }
    driver = _driver()
    cast(IO[str], driver.stdin).write(json.dumps(job) + "\n")
    cast(IO[str], driver.stdin).flush()
    return Outcome(**json.loads(cast(IO[str], driver.stdout).readline()))


def size(directory: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@functools.cache
def _driver() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "support.bounded"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    atexit.register(process.kill)
    return process


def _outcome(job: dict[str, Any]) -> dict[str, Any]:
    """How a process ended that ran one command."""
    printed, errors = os.pipe()
    noted, note = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(errors, 2)
        code = _command(job)
        # Measured from inside: what the system reports of a child includes its parent.
        found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
        os.write(note, found[1].encode() if found else b"")
        os._exit(code)
    os.close(errors)
    os.close(note)
    with os.fdopen(printed) as pipe:
        err = pipe.read()
    with os.fdopen(noted) as pipe:
        peak = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "err": err, "peak": int(peak) << 10 if peak else 1 << 62}


def _command(job: dict[str, Any]) -> int:
    """Run the command here; its exit code."""
    from labelguard.cli.main import main

    os.chdir(job["directory"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for kind, limit in job["limits"].items():
        resource.setrlimit(int(kind), (limit, limit))
    code: object = 0
    try:
        main(job["arguments"], prog_name="labelguard")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _serve() -> None:
    import labelguard.cli.main
    import labelguard.project.restore
    import labelguard.release.pipeline
    import labelguard.report.overview  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(_outcome(json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
