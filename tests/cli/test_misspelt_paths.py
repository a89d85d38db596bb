"""A path that names nothing is told at once, with the file that was probably meant."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import LabelguardError

COMMAND = (
    "import sys\n"
    "from labelguard.cli.main import main\n"
    "code = main(sys.argv[1:], standalone_mode=False)\n"
    "heavy = {'numpy', 'duckdb', 'polars', 'pyarrow', 'torch', 'sqlalchemy'}\n"
    "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    "sys.exit(code)\n"
)


@pytest.mark.parametrize("command", ["inspect", "privatize"])
def test_a_path_that_names_nothing_is_told_before_anything_is_loaded(command, tmp_path):
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


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("simulate", "-o", "d"), "expected a file, as in -o labels.parquet"),
        (("report", "-o", "d"), "expected a file, as in -o report.html"),
        (("plan", "-o", "f"), "expected a directory, as in -o plan"),
        (("privatize", "-o", "release.parquet"), "expected a directory, as in -o release"),
    ],
)
def test_a_file_for_a_directory_is_refused_and_the_reverse(typed, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "f").touch()
    done = CliRunner().invoke(main, list(typed))
    assert done.exit_code == 1 and expected in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["d", "f"]
    with pytest.raises(LabelguardError, match="expected a directory"):
        lg.privatize([], output="release.parquet", project=lg.init(tmp_path))
