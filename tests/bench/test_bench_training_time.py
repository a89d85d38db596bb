"""Times of training: every part runs, and plain SGD takes the step of `uls` without clipping."""

import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("trl")]
SCRIPT = "training_time"
RECORDS, TOKENS = 4, 16


def test_plain_sgd_takes_the_step_of_uls_without_clipping_and_noise(bench, tmp_path):
    bench.save_model(str(tmp_path / "base"), bench.SHAPES["tiny"])
    labels = np.array([1.0, 0.0, 0.5, 1.0])
    problem = bench.open_problem(str(tmp_path), 1, RECORDS, TOKENS)
    mean = problem.clipped_sum(np.arange(RECORDS), labels, 100.0) / RECORDS
    bench.leave_mean_gradient(problem, labels)
    plain = torch.cat([parameter.grad.flatten() for parameter in problem._parameters])
    torch.testing.assert_close(mean.float(), plain, rtol=1e-3, atol=float(1e-4 * plain.abs().max()))
    assert plain.any()


def test_every_part_is_timed(bench, capsys):
    bench.main(["dpo", "props", "gradients", "--tiny"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("DPO, ours", "PROPS, 3 stages", "LoRA, aup"))
