"""The command `privatize --mechanism rr`, and `inspect`, against the least that any tool must do.

    python bench/privatize_rr.py            # 2M and 10M labels with texts, 50M without: 10 minutes
    python bench/privatize_rr.py --quick    # a tenth of it

The floor: DuckDB reads the file, hashes the texts of every pair with SHA-256, sorts by that, and
writes compressed Parquet. All run in processes of their own, one after the other, on the same disk;
seconds of a command are those from its start to its end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
from _measure import measure, report

import labelguard as lg

LABELERS = 20_000
CASES = {"2M": 2_000_000, "10M": 10_000_000, "50M, no texts": 50_000_000}


def generate(path: str, start: int, rows: int, texts: bool) -> None:
    """Labels of 20k labelers; three random texts of 64 bytes, or ids of a few bytes."""
    if texts:
        prompt = "md5(i::VARCHAR) || md5((i + 7)::VARCHAR)"
        first = "md5((3 * i)::VARCHAR) || md5((3 * i + 1)::VARCHAR)"
        second = "md5((5 * i + 2)::VARCHAR) || md5((5 * i + 3)::VARCHAR)"
    else:
        prompt, first, second = "'p' || i // 10", "'a' || i % 1000", "'b' || i % 1000"
    duckdb.execute("SET enable_progress_bar = false").fetchall()
    duckdb.sql(
        f"""COPY (
            SELECT 'worker-' || lpad((hash(i) % {LABELERS})::VARCHAR, 5, '0') AS labeler_id,
                {prompt} AS prompt, {first} AS response_a, {second} AS response_b,
                (hash(7 * i) % 2)::TINYINT AS label
            FROM range({start}, {start + rows}) t(i)
        ) TO '{path}' (FORMAT parquet, COMPRESSION zstd)"""
    )


def sorted_copy(source: list[str], target: str) -> None:
    """The floor."""
    duckdb.execute("SET enable_progress_bar = false").fetchall()
    duckdb.sql(
        f"COPY (FROM read_parquet({source})"
        " ORDER BY sha256(concat(prompt, response_a, response_b)))"
        f" TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
    )


def run_command(*words: str) -> None:
    """A command, from its start to its end."""
    subprocess.run([sys.executable, "-m", "labelguard", *words], check=True, capture_output=True)


def case(name: str, total: int, directory: Path) -> list[list[Any]]:
    """The first release of `total` labels and a second one with a tenth more, each by its floor."""
    first, more = str(directory / "first.parquet"), str(directory / "more.parquet")
    generate(first, 0, total, texts="no texts" not in name)
    generate(more, total, total // 10, texts="no texts" not in name)
    project, bound = str(directory / "project"), str(max(64, 4 * total // LABELERS))
    lg.init(Path(project))
    budget = ["--epsilon", "3", "--delta", "1e-5", "--max-labels-per-labeler", bound]
    coding = ("--label-values", "1-0")
    privatize = ["privatize", "--project", project, *coding, *budget, "--uses", "2", "--yes"]
    steps = {
        "inspect": ("inspect", *coding, first),
        "first release": (*privatize, first),
        "10% new labels": (*privatize, first, more),
    }
    rows = []
    for step, words in steps.items():
        source = [word for word in words if word in (first, more)]
        floor = measure(sorted_copy, source, str(directory / "copy.parquet"))
        run = measure(run_command, *words)
        ratio = round(run["seconds"] / floor["seconds"], 2)
        memory = [run["peak_gb"], floor["peak_gb"]]
        rows.append([name, step, run["seconds"], floor["seconds"], ratio, *memory])
    return rows


def main() -> None:
    """Generate, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--only", choices=list(CASES), help="one of the inputs")
    parser.add_argument("--directory", type=Path, help="where to work; default: a temporary one")
    arguments = parser.parse_args()
    rows = []
    for name in [arguments.only] if arguments.only else CASES:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            rows += case(name, CASES[name] // (10 if arguments.quick else 1), Path(directory))
    columns = ["input", "step", "seconds", "floor", "ratio", "peak_gb", "floor_gb"]
    report("privatize_rr", columns, rows)


if __name__ == "__main__":
    main()
