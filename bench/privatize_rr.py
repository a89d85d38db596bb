"""`privatize --mechanism rr` against DuckDB's sorted copy of the same file.

    python bench/privatize_rr.py            # 10M labels with texts, 50M without: about 5 minutes
    python bench/privatize_rr.py --quick    # a tenth of it

The floor is what any tool must do that reads the file and writes it sorted. Both run in processes
of their own, one after the other, on the same disk.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import duckdb
from _measure import measure, report

import labelguard as lg
import labelguard.release.privatize  # so that neither side is charged for its imports

LABELERS = 20_000
CASES = {"texts": 10_000_000, "no texts": 50_000_000}


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
        f"COPY (FROM read_parquet({source}) ORDER BY prompt) "
        f"TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
    )


def privatize(source: list[str], project: str, bound: int) -> dict[str, int]:
    """One release."""
    release = lg.privatize(
        source, epsilon=3, delta=1e-5, max_labels_per_labeler=bound, project=project
    )
    return dict(release.card["counts"])


def case(name: str, total: int, directory: Path) -> list[list[Any]]:
    """The first release of `total` labels and a second one with a tenth more, each by its floor."""
    first, more = str(directory / "first.parquet"), str(directory / "more.parquet")
    generate(first, 0, total, texts=name == "texts")
    generate(more, total, total // 10, texts=name == "texts")
    project, bound = str(directory / name), max(64, 4 * total // LABELERS)
    lg.init(Path(project))
    rows = []
    for step, source in {"first release": [first], "10% new labels": [first, more]}.items():
        floor = measure(sorted_copy, source, str(directory / "copy.parquet"))
        run = measure(privatize, source, project, bound)
        charged = f"{run['result']['charged']:,}"
        ratio = round(run["seconds"] / floor["seconds"], 2)
        memory = [run["peak_gb"], floor["peak_gb"]]
        rows.append([name, step, charged, run["seconds"], floor["seconds"], ratio, *memory])
    return rows


def main() -> None:
    """Generate, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--only", choices=list(CASES), help="one of the two inputs")
    parser.add_argument("--directory", type=Path, help="where to work; default: a temporary one")
    arguments = parser.parse_args()
    rows = []
    for name in [arguments.only] if arguments.only else CASES:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            rows += case(name, CASES[name] // (10 if arguments.quick else 1), Path(directory))
    columns = ["input", "step", "charged", "seconds", "sorted copy", "ratio", "peak_gb", "copy_gb"]
    report("privatize_rr", columns, rows)


if __name__ == "__main__":
    main()
