"""Jobs in processes of their own, each forked from one that has imported what they need.

Most of these jobs take less than a start of Python. A job is a value of JSON, and so is the answer.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, NamedTuple, cast


class End(NamedTuple):
    """How a process ended: its exit code, what it answered, and what it printed as errors.

    The code is the negative number of the signal that killed it.
    """

    code: int
    answer: str
    printed: str


@functools.cache
def _driver(module):
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    atexit.register(process.kill)
    return process


def run(module, *jobs):
    """Return how jobs ended that were done one after the other by `serve` of a module."""
    driver = _driver(module)
    cast(IO[str], driver.stdin).write(json.dumps(jobs) + "\n")
    cast(IO[str], driver.stdin).flush()
    return [End(*end) for end in json.loads(cast(IO[str], driver.stdout).readline())]


def serve(work):
    """Do what `run` asks: `work` returns an exit code and an answer."""
    for line in sys.stdin:
        print(json.dumps([_forked(work, job) for job in json.loads(line)]), flush=True)


def _forked(work, job):
    reading, writing = os.pipe()
    listening, errors = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(errors, 2)
        code, answer = work(job)
        os.write(writing, answer.encode())
        os._exit(code)
    os.close(writing)
    os.close(errors)
    with os.fdopen(listening) as pipe:
        printed = pipe.read()
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return End(os.waitstatus_to_exitcode(status), answer, printed)
