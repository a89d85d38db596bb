"""Every benchmark starts, and those without models measure something small."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "bench"
SCRIPTS = sorted(path.stem for path in BENCH.glob("[a-z]*.py"))
SMALL = {
    "forecast": ("--labels", "2000", "--labelers", "100", "--items", "500"),
    "hook": ("--seconds", "1"),
    "ledger": ("--quick",),
    "scale": ("--rows", "0.02", "--engines", "local"),
    "statistic_core": ("--pairs", "2000", "--features", "16", "--labelers", "100"),
}
OF_SHARED_DATA = ("calibration", "privacy_utility", "real_rr")
SHARED = Path(os.environ.get("LABELGUARD_SHARED_DATA") or BENCH.parent / "../shared/data")


def _run(script, *words):
    command = [sys.executable, str(BENCH / f"{script}.py"), *words]
    environment = {
        **os.environ,
        "LABELGUARD_BENCH_POSTGRES": "postgresql+psycopg://nobody@[::1]:1/",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_says_how_it_is_run(script):
    assert "usage:" in _run(script, "--help")


@pytest.mark.parametrize("script", SMALL)
def test_small_measurements_give_a_table(script):
    assert "| " in _run(script, *SMALL[script])


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="LABELGUARD_SHARED_DATA names no directory")
@pytest.mark.parametrize("script", OF_SHARED_DATA)
def test_real_sets_give_a_table(script, tmp_path):
    results = ("--results", str(tmp_path / "runs.jsonl"))
    features = ("--features", "length+style") if script == "privacy_utility" else ()
    more = () if script == "real_rr" else results
    assert "| " in _run(script, "--data", str(SHARED), "--quick", *more, *features)
