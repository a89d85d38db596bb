"""Run the year of docs/budget.md and write the output of its commands into the page.

    python docs/generate_budget.py

The page is its own source: every `$ labelguard …` line of a console block is run, in order, and the
lines below it are replaced by its output (`| head -N`: the first N lines of it). HTML comments say
what happens in between:

    <!-- date: 2030-02-01 -->          the clock stands there from now on
    <!-- weekly: 1-20 -->             the job of these Mondays runs, its output unseen

Labels are simulated; only the clock and the source of random bytes are replaced, so that the page
comes out the same each time. A test compares it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from labelguard import clock
from labelguard.cli.main import main as labelguard
from labelguard.keys import keyring
from labelguard.simulation import simulate

PAGE = Path(__file__).with_name("budget.md")
WEEKS = 52
MONDAY = date(2030, 1, 7)
EXPORTS = (8, 36)
WEEKLY = (
    "privatize weeks/{week:02d}.parquet --mechanism statistic --features length --components 1 "
    "--whitening 0 --floor 1 --clip-quantile 0.5 --ridge 1 --exhausted drop"
)
_STEP = re.compile(r"<!-- (date|weekly): (\S+) -->|```console\n(.*?)```", re.DOTALL)


class Clock:
    """A clock that stands where it was set."""

    def __init__(self) -> None:
        self.date = "2030-01-02"

    def now(self) -> str:
        """The set date, at nine in the morning."""
        return f"{self.date}T09:00:00Z"


def page(text: str) -> str:
    """The page with the output of all its commands."""
    with _year() as time:

        def step(match: re.Match[str]) -> str:
            directive, value, block = match.groups()
            if directive == "date":
                time.date = value
            elif directive == "weekly":
                first, last = (int(week) for week in value.split("-"))
                for week in range(first, last + 1):
                    time.date = (MONDAY + timedelta(weeks=week - 1)).isoformat()
                    run(WEEKLY.format(week=week))
            else:
                return f"```console\n{_console(block)}```"
            return match[0]

        return _STEP.sub(step, text)


def run(command: str) -> str:
    """What a command prints; commands that must fail are marked in the page by their exit code."""
    result = CliRunner().invoke(labelguard, shlex.split(command), catch_exceptions=False)
    return result.output + (f"(exit code {result.exit_code})\n" if result.exit_code else "")


def _console(block: str) -> str:
    printed = []
    for line in re.findall(r"(?m)^\$ (?:.*\\\n)*.*$", block):
        command, _, lines = line.replace("\\\n", " ").partition(" | head -")
        output = run(command.removeprefix("$ labelguard "))
        if lines:
            output = "".join(output.splitlines(keepends=True)[: int(lines)])
        printed.append(f"{line}\n{output}")
    return "\n".join(printed)


@contextlib.contextmanager
def _year() -> Iterator[Clock]:
    """An empty directory with the labels of a year, week by week, and two exports of them."""
    time, count = Clock(), itertools.count()

    def counted(size: int) -> bytes:
        return hashlib.shake_256(f"random bytes {next(count)}".encode()).digest(size)

    variables = {name: value for name, value in os.environ.items() if "LABELGUARD" not in name}
    with (
        tempfile.TemporaryDirectory() as scratch,
        contextlib.chdir(scratch),
        mock.patch.object(clock, "now", time.now),
        mock.patch.object(keyring, "random_bytes", counted),
        mock.patch.dict(os.environ, variables | {"COLUMNS": "100"}, clear=True),
    ):
        table = simulate(labelers=60, labels=3_600, items=1_500)
        table = _spread(table)
        ends = [len(table) * week // WEEKS for week in range(WEEKS + 1)]
        Path("weeks").mkdir()
        for week in range(WEEKS):
            rows = table.slice(ends[week], ends[week + 1] - ends[week])
            pq.write_table(rows, f"weeks/{week + 1:02d}.parquet")
        for number, week in enumerate(EXPORTS, start=1):
            pq.write_table(table.slice(0, ends[week]), f"export-{number}.parquet")
        yield time


def _spread(table: pa.Table) -> pa.Table:
    """At most 60 labels of each labeler, over the whole year (simulated ones come one by one)."""
    ids = table["labeler_id"].to_numpy()
    order = np.random.default_rng(0).permutation(len(ids))
    distinct, labeler = np.unique(ids[order], return_inverse=True)
    earlier = np.zeros(len(distinct), np.int64)
    keep = []
    for row, who in zip(order.tolist(), labeler.tolist(), strict=True):
        if earlier[who] < 60:
            keep.append(row)
        earlier[who] += 1
    return table.take(pa.array(keep))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
