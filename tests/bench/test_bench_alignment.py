"""The benchmark of alignment, with every method once; its curves are compared where they meet."""

from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    """The benchmark's module."""
    monkeypatch.syspath_prepend(str(BENCH))
    import alignment

    return alignment


@pytest.mark.slow
@pytest.mark.xdist_group("trl")
def test_every_method_runs_once(bench, tmp_path, capsys):
    assert bench.main(["--tiny", "--work", str(tmp_path), "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert all(method in printed for method in bench.METHODS)
    found = bench.records(1.0, bench.TINY, tmp_path / "tiny", 1)
    assert len(found) == len(bench.METHODS)


@pytest.mark.slow
@pytest.mark.xdist_group("trl")
def test_every_setting_of_whole_records_runs_once(bench, tmp_path, capsys):
    options = ["--private", "records", "--tiny", "--work", str(tmp_path), "--workers", "1"]
    assert bench.main(options) == 0
    printed = capsys.readouterr().out
    assert "every_epsilon_gains" in printed and "reward model, seed 0, ε = 4" in printed
    runs = list((tmp_path / "records-tiny" / "seed-0").glob("*-*-*.json"))
    assert len(runs) == len(list(bench.records_runs.settings()))


def test_what_is_no_sentence_is_worth_least(bench):
    from alignment_runs import language

    pairs = language.pairs(20, 0)
    true = language.true_rewards(pairs.prompt, pairs.first)
    broken = [text.replace("the ", "", 1) for text in pairs.first]
    assert (language.true_rewards(pairs.prompt, broken) < true + 25).all()
    assert language.true_rewards(["about x ."], ["the the the"])[0] == language.grammar.VALUES[0]
    difference = true - language.true_rewards(pairs.prompt, pairs.second)
    np.testing.assert_allclose(pairs.advantage, language.SHARPNESS * difference)


def test_policies_are_compared_at_the_largest_kl_that_both_reach(bench):
    private = [[kl, 2 * kl, 0] for kl in range(9)]
    exact = [[kl, 3 * kl, 0] for kl in range(6)]
    found = [
        {"method": "RL", "seed": 0, "curve": private},
        {"method": "RL, no privacy", "seed": 0, "curve": exact},
    ]
    np.testing.assert_allclose(bench.at_equal_kl(found), [(4.0, 8.0, 12.0)])
