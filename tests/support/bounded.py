"""Commands run under limits of memory, time and disk, and what they took."""

import os
import re
import resource
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from support import forks

_ADDRESSES = 8 << 30


@dataclass(frozen=True)
class Outcome:
    """How a command ended: exit code, standard error, and its largest resident memory in bytes."""

    code: int
    err: str
    peak: int

    def refused_in_one_line(self):
        """Whether it ended with an error in one line."""
        return self.code == 1 and self.err.startswith("labelguard: ") and self.err.count("\n") == 1


def run(directory, *arguments, seconds=60, disk=1 << 30):
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
    end = forks.run("support.bounded", job)[0]
    return Outcome(end.code, end.printed, int(end.answer) << 10 if end.answer else 1 << 62)


def size(directory):
    """Bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _work(job):
    """Run a command; its exit code, and the KiB of memory that it took at most."""
    code = _command(job)
    # Measured from inside: what the system reports of a child includes its parent.
    found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return code, found[1] if found else ""


def _command(job):
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


def _serve():
    import labelguard.cli.main
    import labelguard.project.restore
    import labelguard.release.privatize
    import labelguard.report.overview  # noqa: F401

    forks.serve(_work)


if __name__ == "__main__":
    _serve()
