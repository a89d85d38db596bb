"""Attack: whoever can write the cache of noise multipliers gets a run with less noise."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from labelguard.accounting import mixture, subsampled

ASKED = (1.0, 1e-5, 0.2, 30)
"""ε, δ, q, T"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a process that has calibrated nothing yet."""
    monkeypatch.setenv("LABELGUARD_CACHE", str(tmp_path))
    _forget()
    yield tmp_path / "accounting"
    _forget()


def _forget() -> None:
    for calibrations in (subsampled._calibrate, mixture._calibrate):
        calibrations.cache_clear()


def _rewritten(path: Path, noise_multiplier: object) -> None:
    content = json.loads(path.read_bytes()) | {"noise_multiplier": noise_multiplier}
    path.write_text(json.dumps(content))


@pytest.mark.quick("0.0", "0.999")
@pytest.mark.parametrize("factor", [0.0, 0.1, 0.5, 0.9, 0.999, 1.01, 2.0, 1e300])
def test_noise_that_somebody_wrote_into_the_cache_is_not_used(cache: Path, factor: float) -> None:
    honest = subsampled.calibrate(*ASKED)
    (file,) = cache.iterdir()
    _rewritten(file, int(honest * factor * 2**20) / 2**20)
    _forget()
    assert subsampled.calibrate(*ASKED) == honest
    assert json.loads(file.read_bytes())["noise_multiplier"] == honest  # and it is set right


def test_the_noise_of_a_weaker_request_is_not_used_under_the_name_of_another(cache: Path) -> None:
    honest = mixture.calibrate(*ASKED, 3)
    (file,) = cache.iterdir()
    mixture.calibrate(8.0, *ASKED[1:], 3)
    (weaker,) = set(cache.iterdir()) - {file}
    file.write_bytes(weaker.read_bytes())
    _forget()
    assert mixture.calibrate(*ASKED, 3) == honest


@pytest.mark.quick("", "\\xff\\xfe")
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 4000, b'{"noise_multiplier": 1}', b" " * 10**6],
)
def test_a_damaged_file_is_ignored(cache: Path, content: bytes) -> None:
    honest = subsampled.calibrate(*ASKED)
    (file,) = cache.iterdir()
    file.write_bytes(content)
    _forget()
    assert subsampled.calibrate(*ASKED) == honest


@pytest.mark.quick("NaN", "true")
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1.0", "true", '"1.0"', "1", "[1.0]"])
def test_what_is_no_noise_multiplier_is_ignored(cache: Path, value: str) -> None:
    honest = subsampled.calibrate(*ASKED)
    (file,) = cache.iterdir()
    _rewritten(file, "HERE")
    file.write_text(file.read_text().replace('"HERE"', value))
    _forget()
    assert subsampled.calibrate(*ASKED) == honest


def test_a_pipe_in_place_of_a_file_stops_nobody(cache: Path) -> None:
    honest = subsampled.calibrate(*ASKED)
    (file,) = cache.iterdir()
    file.unlink()
    os.mkfifo(file)
    _forget()
    assert subsampled.calibrate(*ASKED) == honest


def test_a_cache_that_cannot_be_written_costs_time_only(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = subsampled.calibrate(*ASKED)
    in_the_way = cache.parent / "file"
    in_the_way.touch()
    monkeypatch.setenv("LABELGUARD_CACHE", str(in_the_way))
    _forget()
    assert subsampled.calibrate(*ASKED) == honest


def test_what_was_found_is_kept_whole_and_taken_from_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labelguard.accounting import _calibration

    honest = subsampled.calibrate(*ASKED)
    assert [path.suffix for path in cache.iterdir()] == [".json"]
    _forget()
    monkeypatch.setattr(_calibration, "multiplier", None)  # a search would fail
    assert subsampled.calibrate(*ASKED) == honest
