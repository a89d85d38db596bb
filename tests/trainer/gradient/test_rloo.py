"""Policy optimization by noised steps: whose records move whose gradient, and by how much."""

import hmac

import numpy as np
import pyarrow as pa
import pytest
import torch
from labelguard_trainer.gradient.loop import COIN_RANGE, Checkpoints, NoisyRun, train
from labelguard_trainer.gradient.rloo import compare_with_others
from labelguard_trainer.records.stages import RecordStage

PROMPTS = ["tea?", "rain and trains?", "salt", "a longer one about birds?", "chess?", "maps?"]
UNIT = np.array([0, 0, 1, 2, 2, 3])
CONFIG = {
    "learning_rate": None,
    "max_grad_norm": 0.1,
    "max_length": 64,
    "optim": "sgd",
    "seed": 1,
    "bf16": False,
    "use_cpu": True,
    "num_generations": 4,
    "max_completion_length": 6,
    "beta": 0.05,
}
SECRET = bytes(range(32))


def count_of_e(prompt, responses):
    """A reward that is public and looks at one response: how many of its tokens are low."""
    return torch.tensor([float(sum(token < 100 for token in response)) for response in responses])


@pytest.fixture(scope="module", params=["r=2,alpha=4", None], ids=["LoRA", "whole"])
def make(base, request):
    """Make the problem of these prompts, whose coins are known."""

    def problem(prompts=PROMPTS, unit=UNIT, updates=1, reward=count_of_e, missing=()):
        stage = RecordStage.of("rl", base, {"lora": request.param, "config": CONFIG}, 8, updates)
        present = np.array([row not in missing for row in range(len(prompts))])
        texts = [pa.array(prompts, pa.large_string())]
        made = stage.problem(texts, unit, present, int(unit.max()) + 1, reward)
        made._make_secret = lambda: SECRET
        return made

    return problem


def gradients(problem, *units):
    """Of these units, (units, size)."""
    return problem.gradients(np.array(units), np.zeros(0))


def test_the_advantage_is_what_a_reward_has_above_the_mean_of_the_others():
    rewards = torch.tensor([1.0, 2.0, 6.0])
    assert compare_with_others(rewards).tolist() == pytest.approx([1 - 4, 2 - 3.5, 6 - 1.5])
    assert compare_with_others(rewards + 7).tolist() == pytest.approx(
        compare_with_others(rewards).tolist()
    )


def test_nothing_of_a_person_changes_when_the_prompts_of_others_do(make):
    """Bit for bit: the responses that they draw, their rewards and their whole gradient."""
    one, other = make(), make(["quite another thing", "", *PROMPTS[2:]])
    assert not np.array_equal(gradients(one, 0), gradients(other, 0))
    assert np.array_equal(gradients(one, 1, 2, 3), gradients(other, 1, 2, 3))
    for row in (2, 3, 4, 5):
        for mine, theirs in zip(one._drawn[row].judged, other._drawn[row].judged, strict=True):
            assert torch.equal(mine, theirs)
        assert torch.equal(one._drawn[row].ids, other._drawn[row].ids)


def test_nothing_of_a_person_depends_on_who_else_is_in_the_cohort(make):
    problem = make()
    together = gradients(problem, 0, 1, 2, 3)
    for unit in range(4):
        assert np.array_equal(together[unit], gradients(problem, unit)[0])
    assert np.array_equal(together[::-1], gradients(problem, 3, 2, 1, 0))


def test_null_records_add_exactly_nothing(make):
    problem = make(missing=(2,))
    assert not gradients(problem, 1).any()
    total = problem.clipped_sum(np.array([0, 1]), np.zeros(0), 0.1)
    assert torch.equal(total, problem.clipped_sum(np.array([0]), np.zeros(0), 0.1))


def test_a_person_moves_a_sum_by_the_clip_norm_at_most(make):
    problem = make(reward=lambda prompt, responses: 1e6 * count_of_e(prompt, responses))
    without = problem.clipped_sum(np.array([1, 2, 3]), np.zeros(0), 0.1)
    moved = problem.clipped_sum(np.arange(4), np.zeros(0), 0.1) - without
    assert 0.099 < float(moved.norm()) <= 0.1


def test_the_gradient_is_that_of_reinforce_with_the_advantage(make):
    problem = make()
    [found] = gradients(problem, 1)
    drawn = problem._drawn[2]
    assert drawn.judged is not None
    _, advantage = drawn.judged
    log_probs = problem._compute_log_probs_of_responses(problem._model, drawn)
    loss = -(advantage * log_probs).mean()
    parts = torch.autograd.grad(loss, problem._parameters)
    assert found == pytest.approx(torch.cat([part.flatten() for part in parts]).numpy(), abs=1e-6)


def test_the_price_of_kl_is_in_the_reward(make):
    """After a step log π differs from where it began, and so do rewards."""
    problem = make(updates=1)
    problem.step(torch.ones(problem.size) * 3)
    gradients(problem, 1)
    drawn = problem._drawn[2]
    assert drawn.judged is not None
    before, advantage = drawn.judged
    width = len(problem._prompts[2])
    written = [i[width:][r[width:]].tolist() for i, r in zip(drawn.ids, drawn.real, strict=True)]
    start = make()
    kl = before - start._compute_log_probs_of_responses(start._model, drawn).detach()
    expected = compare_with_others(count_of_e(None, written) - 0.05 * kl)
    assert advantage.numpy() == pytest.approx(expected.numpy(), abs=1e-4)


def test_responses_are_drawn_from_the_policy_itself(make):
    """The first token of 4,000 responses, by its probability; fails once in a million runs."""
    problem = make(["tea?"], np.zeros(1, int))
    problem._count, problem._longest, counts = 4000, 1, np.zeros(258)
    problem._secret = SECRET
    drawn = problem._draw_responses(0)
    counts += np.bincount(drawn.ids[:, -1].numpy(), minlength=258)
    with torch.no_grad():
        mass = problem._model(drawn.ids[:1, :-1]).logits[0, -1].double().softmax(0).numpy()
    chi = ((counts - 4000 * mass) ** 2 / (4000 * mass)).sum()
    assert 257 - 4.9 * (2 * 257) ** 0.5 < chi < 257 + 6.5 * (2 * 257) ** 0.5


def test_every_update_has_a_noise_of_its_own_and_every_cohort_its_responses(make, tmp_path):
    problem, noise, draws = make(updates=3), [], []
    add_noise = problem.add_noise
    problem.add_noise = lambda *given: (noise.append(given[-1]), add_noise(*given))[1]
    problem._make_secret = lambda: (
        draws.append(len(noise)) or hmac.digest(SECRET, bytes([len(draws)]), "sha256")
    )
    run = NoisyRun(COIN_RANGE, 2, 1.0, 0.1, 4, updates=3)
    train(problem, np.zeros(0), run, Checkpoints(tmp_path, 5, lambda data: b""), lambda share: None)
    assert len(noise) == 6 and len(set(noise)) == 6
    assert draws == [0, 3], "responses are drawn once for a cohort"
