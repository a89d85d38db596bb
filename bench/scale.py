"""One release of randomized response by every engine: seconds, and what an engine adds.

    python bench/scale.py                                # 1M and 10M labels, threads and processes
    python bench/scale.py --engines local ray            # where Ray is installed
    python bench/scale.py --rows 50 --buckets 64         # 50M labels

Labels of 20,000 labelers with three texts of 64 bytes, in eight files. All engines run on this
machine, each command in a process of its own, one after the other, on the same disk; `start` is
what the engine takes to do nothing. The bytes of labels that are staged and released are counted on
disk, so that docs/scale.md can be computed from constants.
"""

from __future__ import annotations

import argparse
import operator
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from _measure import measure, report
from privatize_rr import LABELERS, generate, run_command

import labelguard as lg
from labelguard.storage.executor import open_executor, run_over_buckets

FILES = 8
ENGINES = ("local", "processes", "ray")


def start(engine: str, workers: int) -> None:
    """Start an engine and have every bucket do nothing."""
    with closing(open_executor(engine, workers)) as executor:
        assert not any(run_over_buckets(executor, operator.is_, None, count=16))


def case(
    total: int, engines: list[str], buckets: int, workers: int, where: Path
) -> list[list[Any]]:
    """Release `total` labels by each engine; a row of figures for each."""
    for number in range(FILES):
        path, part = where / f"labels-{number}.parquet", total // FILES
        generate(str(path), number * part, part, texts=True)
    taken = sum(path.stat().st_size for path in where.glob("labels-*.parquet"))
    rows: list[list[Any]] = []
    local = None
    for engine in engines:
        project, out = where / engine, where / f"out-{engine}"
        lg.init(project)
        words = ["privatize", str(where / "labels-*.parquet"), "--project", str(project)]
        words += ["--label-values", "1-0"]
        words += ["--mechanism", "rr", "--epsilon", "3", "--delta", "1e-5", "--once", "--yes"]
        words += ["--engine", engine, "--buckets", str(buckets), "--workers", str(workers)]
        words += ["--max-labels-per-labeler", str(max(64, 4 * total // LABELERS)), "-o", str(out)]
        run = measure(run_command, *words, "--accept-little-use")
        idle = measure(start, engine, workers)["seconds"]
        local = run["seconds"] if local is None else local
        released = sum(path.stat().st_size for path in out.glob("data*.parquet"))
        private = sum(path.stat().st_size for path in project.rglob("bucket=*.parquet"))
        ratio = round(run["seconds"] / local, 2)
        per_row = [round(size / total) for size in (taken, released, private)]
        rows.append([total, engine, run["seconds"], ratio, idle, run["peak_gb"], *per_row])
        for path in out.iterdir():
            path.unlink()
    return rows


def main() -> None:
    """Generate, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", nargs="+", type=float, default=[1, 10], help="in millions")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["local", "processes"])
    parser.add_argument("--buckets", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--directory", type=Path, help="where to work; default: a temporary one")
    options = parser.parse_args()
    rows: list[list[Any]] = []
    for millions in options.rows:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            total = int(millions * 1_000_000)
            place = Path(directory)
            rows += case(total, options.engines, options.buckets, options.workers, place)
    columns = ["labels", "engine", "seconds", "ratio", "start", "peak_gb"]
    report("scale", [*columns, "input_bytes", "released_bytes", "map_bytes"], rows)


if __name__ == "__main__":
    main()
