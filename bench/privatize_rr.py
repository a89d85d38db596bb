"""`privatize --mechanism rr` against DuckDB's sorted copy of the same file.

    python bench/privatize_rr.py            # 10M labels with texts, 50M without: about 5 minutes
    python bench/privatize_rr.py --quick    # a tenth of it

The floor is what any tool must do that reads the file and writes it sorted. Both run in processes
of their own, one after the other, on the same disk.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import duckdb
from _measure import measure, report

import labelguard as lg

LABELERS = 20_000


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


def sorted_copy(source: str, target: str) -> None:
    """The floor."""
    duckdb.execute("SET enable_progress_bar = false").fetchall()
    duckdb.sql(
        f"COPY (FROM '{source}' ORDER BY prompt) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
    )


def privatize(source: list[str], project: str, bound: int) -> dict[str, int]:
    """One release."""
    release = lg.privatize(
        source, epsilon=3, delta=1e-5, max_labels_per_labeler=bound, project=project
    )
    return dict(release.card["counts"])


def main() -> None:
    """Generate, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--directory", type=Path, help="where to work; default: a temporary one")
    arguments = parser.parse_args()
    scale = 10 if arguments.quick else 1
    directory = Path(tempfile.mkdtemp(dir=arguments.directory))
    rows = []
    try:
        for name, count, texts in (
            ("64-byte texts", 10_000_000, True),
            ("no texts", 50_000_000, False),
        ):
            total = count // scale
            bound = max(64, 4 * total // LABELERS)
            first, more = str(directory / "first.parquet"), str(directory / "more.parquet")
            generate(first, 0, total, texts)
            generate(more, total, total // 10, texts)
            floor = measure(sorted_copy, first, str(directory / "copy.parquet"))
            rows.append(
                [name, f"{total:,}", "sorted copy", floor["seconds"], 1.0, floor["peak_gb"], ""]
            )
            lg.init(directory / name)
            steps = {"privatize": [first], "10% new labels": [first, more]}
            for step, source in steps.items():
                run = measure(privatize, source, str(directory / name), bound)
                ratio = round(run["seconds"] / floor["seconds"], 2)
                charged = f"{run['result']['charged']:,}"
                rows.append(
                    [name, f"{total:,}", step, run["seconds"], ratio, run["peak_gb"], charged]
                )
            shutil.rmtree(directory / name)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    columns = ["input", "labels", "step", "seconds", "ratio", "peak_gb", "charged"]
    report("privatize_rr", columns, rows)


if __name__ == "__main__":
    main()
