"""The benchmark of alignment, with every method once, and its true reward."""

import numpy as np
import pytest

SCRIPT = "alignment"


@pytest.mark.slow
@pytest.mark.xdist_group("trl")
def test_every_method_runs_once(bench, tmp_path, capsys):
    bench.main(["--tiny", "--work", str(tmp_path)])
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("untrained", "fine-tuned", "DPO", "RL", "ε = 50"))


def test_what_is_no_sentence_is_worth_least(bench):
    pairs = bench.draw_pairs(20, 0, bench.FULL.size)
    true = bench.true_rewards(pairs.prompt, pairs.first)
    broken = [text.replace("the ", "", 1) for text in pairs.first]
    assert (bench.true_rewards(pairs.prompt, broken) < true + 25).all()
    assert bench.true_rewards(["about x ."], ["the the the"])[0] == bench.VALUES[0]
    difference = true - bench.true_rewards(pairs.prompt, pairs.second)
    np.testing.assert_allclose(pairs.advantage, bench.SHARPNESS * difference)
