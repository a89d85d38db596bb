"""What a learner is given, leaves behind and publishes depends on released labels alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gated import Gates
from support.preferences import opinions, public
from support.scenarios import ALL, HALF
from support.worlds import Coins, Run, Scenario, differences, observed


@pytest.fixture
def learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gates:
    return Gates.install(tmp_path, monkeypatch)


def asked(gates: Gates, *more: str) -> tuple[str, ...]:
    learner = ("--learner", "gated", "--model", str(gates.directory))
    return ("--mechanism", "props", *learner, "--stages", "3", *more)


def test_a_release_with_a_model_tells_released_labels_only(learned: Gates, tmp_path: Path) -> None:
    runs = Run(asked(learned), HALF), Run(asked(learned, "--combine", "soft"), HALF)
    assert differences(tmp_path, "pairs", Scenario(runs), ALL) == []


@pytest.mark.slow
def test_so_does_all_that_is_on_disk_while_it_learns(learned: Gates, tmp_path: Path) -> None:
    learned.break_at(1)
    scenario = Scenario((Run(asked(learned), exits=1),), afterwards=(("release", "list"),))
    assert differences(tmp_path, "pairs", scenario, ALL) == []
    everybody, coins = public(), Coins({}, replayed=False)
    thought = opinions(len(everybody), 1)
    seen = observed(tmp_path / "one", "pairs", scenario, everybody, thought, coins)
    for part in ("kept/texts/", "kept/outcomes/", "models/0.bin", "stage=01.npz"):
        assert any(".labelguard/props/" in name and part in name for name in seen)
