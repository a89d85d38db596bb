"""The audit of runs on whole records: a right run keeps its claim, several updates at the price of
one are found.

One run with many canaries. Each is a made-up person with a canary prompt and a fair coin, by which
it is there or null. In the worst case, which is played here, the gradient of a canary that is there
has the clip norm, along a direction of its own, in every update of a cohort that it is in. So what
is seen of one canary is independent of all others, and each is a trial of its own: how often the
attacker's score lies above a threshold in either world bounds ε from below (Clopper and Pearson).
A right run breaks its claim in at most one audit in a million.

That is so of the loop. The second half goes the whole way of policy optimization: a prompt is read,
answered by a model, and judged; the gradient of its advantage is clipped, noised, and moves the
model; of this the attacker sees what it was before, and is after.
"""

import numpy as np
import pyarrow as pa
import pytest
import torch
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun, train
from labelguard_trainer.gradient.model import ModelProblem
from labelguard_trainer.records.stages import RecordStage
from support import bounds
from support.bounds import FALSE_ALARM
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from labelguard.accounting import zero_out
from labelguard.keys import keyring

CLAIM, DELTA = 1.0, 1e-4
CANARIES, RATE, STEPS, CLIP = 400_000, 0.2, 2, 0.5
# Shares of null canaries above the attacker's thresholds.
SHARES = (0.1, 0.03, 0.01, 0.003)


class CanaryPrompts:
    """A problem whose every coordinate is one canary's; it notes what the attacker sees."""

    def __init__(self, there):
        self.there, self.seen = there, []

    def clipped_sum(self, units, labels, clip):
        total = np.zeros(CANARIES)
        total[units] = clip * self.there[units]
        return total

    def add_noise(self, total, deviation, secret):
        generator = np.random.default_rng(np.frombuffer(secret, np.uint32))
        return total + generator.normal(0, deviation, CANARIES)

    def step(self, gradient):
        self.seen.append(gradient)

    def state(self):
        return {}


def prove(directory, *, updates, priced):
    """The ε that is proven of a run with so many updates of each cohort, priced as so many."""
    noise = zero_out.calibrate(CLAIM, DELTA, RATE, STEPS, priced)
    price = {"noise_multiplier": noise, "sampling_probability": RATE, "steps": STEPS}
    run = NoisyRun.from_price({**price, "updates": updates}, CLIP, CANARIES)
    there = np.random.default_rng().random(CANARIES) < 0.5
    problem = CanaryPrompts(there)
    checkpoints = Checkpoints(directory, STEPS + 1, lambda data: b"")
    train(problem, np.zeros(0), run, checkpoints, lambda share: None)
    seen = np.array(problem.seen).reshape(STEPS, updates, CANARIES).sum(1) * run.divisor / CLIP
    odds = np.exp(np.minimum((seen - updates / 2) / noise**2, 50))
    score = np.log1p(RATE * (odds - 1)).sum(0)
    return max(lower_bound(score[there], score[~there], share) for share in SHARES)


def lower_bound(there, null, share):
    """The ε that is proven by scores above a threshold that so many of the null canaries pass."""
    alpha = FALSE_ALARM / len(SHARES) / 2
    threshold = np.quantile(null[: len(null) // 2], 1 - share)
    rest = null[len(null) // 2 :]  # others than those that chose the threshold
    often = bounds.bound_probabilities((there > threshold).sum(), len(there), alpha)[0]
    seldom = bounds.bound_probabilities((rest > threshold).sum(), len(rest), alpha)[1]
    return max(0.0, float(np.log(max(float(often) - DELTA, 1e-300) / float(seldom))))


@pytest.mark.parametrize("updates", [1, 4])
def test_a_run_keeps_its_claim_when_its_updates_are_paid(updates, tmp_path):
    assert prove(tmp_path, updates=updates, priced=updates) <= CLAIM


def test_four_updates_at_the_price_of_one_are_found(tmp_path):
    assert prove(tmp_path, updates=4, priced=1) > CLAIM


# Prompts through generation, reward and RLOO.

# A coarse δ: what a few thousand canaries can prove.
ASKED, OFTEN, COARSE = 3000, 0.5, 0.05
GOOD, BAD, FIRST = 2, 3, 4
POLICY = {
    "learning_rate": 1e-3,
    "max_grad_norm": CLIP,
    "max_length": 4,
    "optim": "sgd",
    "seed": 0,
    "bf16": False,
    "use_cpu": True,
    "num_generations": 16,
    "max_completion_length": 1,
    "beta": 0.05,
}


@pytest.fixture(scope="module")
def bigrams(tmp_path_factory):
    """A public model that the attacker chose: it answers each prompt, one word, by good or bad.

    Embeddings are tiny, and normed after: of a prompt's gradient all but 1e-8 is in its own row.
    """
    directory = tmp_path_factory.mktemp("bigrams")
    words = ["<eos>", "<pad>", "good", "bad", *(f"canary{number}" for number in range(ASKED))]
    backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", model_max_length=8
    ).save_pretrained(directory)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=4,
            intermediate_size=4,
            num_hidden_layers=0,
            num_attention_heads=1,
            rms_norm_eps=1e-20,
            max_position_embeddings=8,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=1,
        )
    )
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        rows, head = model.model.embed_tokens.weight, model.lm_head.weight
        rows.copy_(1e-4 * torch.randn(rows.shape, generator=draw).mul(0.1))
        rows[:, 0] = 1e-4
        head.zero_()
        head[GOOD], head[BAD] = torch.tensor([[20.0, 1, 0, 0], [20.0, -1, 0, 0]])
    model.save_pretrained(directory)
    return str(directory)


def likes_good(prompt, responses):
    """The attacker's reward: whatever gradient there is, it is far above the clip norm."""
    return torch.tensor([1e6 * (response == [GOOD]) for response in responses])


def pose(bigrams, there, updates):
    """Make the problem of canaries who ask a word of their own each, or nothing."""
    stage = RecordStage.of("rl", bigrams, {"lora": None, "config": POLICY}, 1, updates)
    texts = [pa.array([f"canary{at}" for at in range(ASKED)], pa.large_string())]
    return stage.problem(texts, np.arange(ASKED), there, ASKED, likes_good)


def aim(bigrams):
    """Compute from public values where a canary's prompt would move its row: (canaries, 4)."""
    model = LlamaForCausalLM.from_pretrained(bigrams)
    logits = model(torch.arange(FIRST, FIRST + ASKED)[:, None]).logits[:, -1]
    (logits[:, GOOD] - logits[:, BAD]).sum().backward()
    rows = model.model.embed_tokens.weight.grad[FIRST:].double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def read_rows(parameters):
    """The rows of canaries among the parameters of a model, (canaries, 4)."""
    return parameters[4 * FIRST : 4 * (FIRST + ASKED)].reshape(ASKED, 4).astype(np.float64)


def prove_by_prompts(bigrams, directory, *, updates, priced, steps=1):
    """The ε that is proven by the model before and after a run, priced as of so many updates."""
    noise = zero_out.calibrate(CLAIM, COARSE, OFTEN, steps, priced)
    price = {"noise_multiplier": noise, "sampling_probability": OFTEN, "steps": steps}
    run = NoisyRun.from_price({**price, "updates": updates}, CLIP, ASKED)
    there = np.random.default_rng(1).permutation(ASKED) < ASKED // 2
    problem = pose(bigrams, there, updates)
    before = read_rows(problem.state()["parameters"])
    checkpoints = Checkpoints(directory, steps + 1, lambda data: b"")
    train(problem, np.zeros(0), run, checkpoints, lambda share: None)
    moved = read_rows(problem.state()["parameters"]) - before
    score = (moved * aim(bigrams)).sum(1) * run.divisor / (POLICY["learning_rate"] * CLIP)
    thresholds = np.array([1, 1.5, 2, 2.5, 4]) * noise * np.sqrt(steps * updates)
    return bounds.epsilon_of_thresholds(
        score[there], score[~there], thresholds, COARSE, FALSE_ALARM
    )


@pytest.fixture
def known_coins(monkeypatch):
    """All cohorts, responses and noise of a test come from one seed."""
    monkeypatch.setattr(keyring, "random_bytes", np.random.default_rng(7).bytes)


def test_a_canary_prompt_moves_its_row_by_the_clip_norm_where_the_attacker_looks(bigrams):
    some, none = np.arange(0, 40, 2), np.arange(1, 40, 2)
    problem = pose(bigrams, np.arange(ASKED) % 2 == 0, 1)
    total = problem.clipped_sum(np.arange(40), np.zeros(0), CLIP).numpy()
    rows = -read_rows(total)
    np.testing.assert_allclose(rows[some], CLIP * aim(bigrams)[some], atol=1e-4 * CLIP)
    assert not rows[none].any()


@pytest.mark.usefixtures("known_coins")
@pytest.mark.quick("1 of 1")
@pytest.mark.parametrize(
    ("updates", "steps"), [(1, 1), (4, 1), (1, 2)], ids=["1 of 1", "4 of 1", "1 of 2"]
)
def test_a_policy_keeps_its_claim_about_prompts(bigrams, tmp_path, updates, steps):
    found = prove_by_prompts(bigrams, tmp_path, updates=updates, priced=updates, steps=steps)
    assert found <= CLAIM


@pytest.mark.usefixtures("known_coins")
@pytest.mark.slow
def test_a_policy_of_four_updates_at_the_price_of_one_is_found(bigrams, tmp_path):
    assert prove_by_prompts(bigrams, tmp_path, updates=4, priced=1) > CLAIM


@pytest.mark.slow
@pytest.mark.usefixtures("known_coins")
def test_a_policy_of_half_the_noise_is_found(bigrams, tmp_path, monkeypatch):
    noised = ModelProblem.add_noise

    def quieter(self, total, deviation, secret):
        return noised(self, total, deviation / 2, secret)

    monkeypatch.setattr(ModelProblem, "add_noise", quieter)
    assert prove_by_prompts(bigrams, tmp_path, updates=1, priced=1) > CLAIM
