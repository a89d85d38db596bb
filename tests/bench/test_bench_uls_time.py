"""The benchmark of ULS and AUP: their ways take the same step as SGD's, and each is timed."""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.slow
SCRIPT = "uls_time"
RECORDS, TOKENS = 4, 16


@pytest.fixture(scope="module")
def directory(bench, tmp_path_factory):
    found = tmp_path_factory.mktemp("bench")
    bench.save_model(str(found / "base"), "tiny", TOKENS)
    return str(found)


@pytest.mark.parametrize("kind", ["reward", "dpo"])
def test_plain_sgd_takes_the_step_of_uls_without_clipping_and_noise(kind, bench, directory):
    labels = np.array([1.0, 0.0, 0.5, 1.0])
    problem = bench.opened(directory, kind, 1, RECORDS, TOKENS, "cpu")
    mean = problem.clipped_sum(np.arange(RECORDS), labels, 100.0) / RECORDS
    bench.mean_gradient(problem, labels)
    plain = torch.cat([parameter.grad.flatten() for parameter in problem._parameters])
    torch.testing.assert_close(mean.float(), plain, rtol=1e-3, atol=float(1e-4 * plain.abs().max()))
    assert plain.any()


def test_every_way_is_timed(bench, directory):
    for way in bench.WAYS:
        found = bench.timed(directory, "reward", way, RECORDS, TOKENS, 1, "cpu")
        assert len(found) == len(bench.HELD)
        assert all(one["seconds"] > 0 and one["peak_gb"] > 0 for one in found)


@pytest.mark.parametrize("held", [1, 10])
def test_plain_sgd_of_a_head_takes_the_step_of_uls_without_clipping(held, bench):
    cohort = bench._uls_heads.Cohort(40, 6, held)
    cohort.problem.theta = np.linspace(-1, 1, 6)
    plain = cohort.sgd()
    cohort.problem.theta = np.linspace(-1, 1, 6)
    large = 2.0**10  # nothing is clipped; all labelers have as many records
    clipped = cohort.problem.clipped_sum(cohort.units, cohort.labels, large)
    assert clipped / len(cohort.units) == pytest.approx(plain, rel=1e-4, abs=1e-6)
    assert plain.any()


def test_every_way_of_a_head_is_timed(bench):
    found = bench._uls_heads.rows(sizes=((200, 8),), rounds=1)
    ways = {"SGD", "ULS", "AUP", "noise, exactly", "floor"}
    assert {(held, way) for _, held, way, *_ in found} == {
        (held, way) for held in bench._uls_heads.HELD for way in ways
    }
    assert all(ratio == 1 for _, _, way, _, ratio, _ in found if way == "SGD")
