"""A path that names nothing is told at once, with the file that was probably meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (
    "import sys\n"
    "from labelguard.cli.main import main\n"
    "code = main(sys.argv[1:], standalone_mode=False)\n"
    "heavy = {'numpy', 'duckdb', 'polars', 'pyarrow', 'torch', 'sqlalchemy'}\n"
    "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    "sys.exit(code)\n"
)


@pytest.mark.parametrize("command", ["inspect", "privatize"])
def test_a_path_that_names_nothing_is_told_before_anything_is_loaded(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / "arena.parquet").touch()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, command, "arean.parquet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "labelguard: arean.parquet: no such file or directory (did you mean 'arena.parquet'?)\n"
    )
