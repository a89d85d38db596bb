"""IPO and KTO with the noise of every row, TRL's own configurations, and losses without TRL.

The examples of `examples/noisy_losses` run, and do what they say.
"""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import labelguard_trainer
import numpy as np
import pytest
import torch
import trl
from labelguard_trainer import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, losses
from support import tiny_models as tiny
from support.copies import release_copy
from support.train_runs import weights
from support.training_steps import QUIET, assert_same_steps, fit
from trl.data_utils import unpair_preference_dataset

from labelguard.errors import LabelguardError

PAIRS, GAMMA = 16, 0.3
FLIPPED = {"chosen": "rejected", "rejected": "chosen"}
ONE_STEP = {"max_length": 64, "max_steps": 1, "per_device_train_batch_size": 32, **QUIET}
ONE_STEP |= {"max_grad_norm": 0.0}  # gradients as they are
IPO = {"loss_type": ["ipo"]}
KINDS = {
    "ipo": (DPOTrainer, DPOConfig, IPO),
    "kto": (KTOTrainer, KTOConfig, {"train_sampling_strategy": "sequential"}),
    # without the KL term, which depends on the answers beside one
    "apo": (KTOTrainer, KTOConfig, {"loss_type": "apo_zero_unpaired", "desirable_weight": 1.5}),
}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another model than `base`, to be its reference."""
    return str(tiny.saved(tmp_path_factory.mktemp("other") / "other", seed=1))


def step(kind, base, rows, other=None, **given):
    """The loss and the gradient of one step on all rows."""
    trainer, config, more = KINDS[kind]
    reference = {"ref_model": tiny.loaded(other)} if other else {}
    args = config("out", **{**ONE_STEP, **more, **given})
    [loss], [gradient] = fit(trainer(base, args, train_dataset=rows, **reference))
    return loss, gradient


@pytest.mark.quick("apo", "ipo")
@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_over_flips_is_the_loss_of_true_labels(kind, base, other):
    """Of its gradient too; all rows are flipped, or none: a loss adds up over rows."""
    reference = None if kind == "kto" else other  # at its reference the KL term is 0
    truth = tiny.release(PAIRS, label_probability=1.0)
    noisy = tiny.release(PAIRS, flip_probability=0.0).remove_columns("flip_probability")
    noisy = noisy.add_column("flip_probability", [GAMMA] * PAIRS)
    wanted = step(kind, base, truth, reference)
    stays = step(kind, base, noisy, reference)
    flips = step(kind, base, noisy.rename_columns(FLIPPED), reference)
    for true, kept, turned in zip(wanted, stays, flips, strict=True):
        mean = (1 - GAMMA) * torch.as_tensor(kept) + GAMMA * torch.as_tensor(turned)
        torch.testing.assert_close(mean, torch.as_tensor(true), rtol=1e-4, atol=1e-5)
    assert abs(stays[0] - wanted[0]) > 1e-3 or kind == "kto"
    assert not torch.allclose(stays[1], wanted[1], rtol=1e-2)


def test_without_noise_ipo_is_trls_step_by_step(base):
    rows, settings = tiny.release(32, label_probability=1.0), {**ONE_STEP, **IPO, "max_steps": 3}
    settings |= {"per_device_train_batch_size": 8, "learning_rate": 3e-3}
    ours = DPOTrainer(base, DPOConfig("out", **settings), train_dataset=rows)
    theirs = trl.DPOTrainer(
        base, args=trl.DPOConfig("out", bf16=False, **settings), train_dataset=rows
    )
    assert_same_steps(fit(ours), fit(theirs))


def test_equal_flips_scale_trls_kto_and_nothing_else(base):
    rows, settings = tiny.release(16, flip_probability=GAMMA), {**ONE_STEP, "max_steps": 3}
    settings |= {"per_device_train_batch_size": 8, "learning_rate": 3e-3, "optim": "sgd"}
    unpaired = unpair_preference_dataset(rows).shuffle(seed=42)
    args = trl.KTOConfig("out", bf16=False, **settings)
    theirs = fit(trl.KTOTrainer(base, args=args, train_dataset=unpaired))
    settings["learning_rate"] *= 1 - 2 * GAMMA
    losses_of_ours, gradients = fit(
        KTOTrainer(base, KTOConfig("out", **settings), train_dataset=rows)
    )
    scale = 1 - 2 * GAMMA
    scaled = [(loss - 0.5) * scale + 0.5 for loss in losses_of_ours]
    assert_same_steps((scaled, [scale * gradient for gradient in gradients]), theirs, 1e-5)


def test_losses_of_answers_are_unbiased_and_their_minimum_is_known():
    gamma = torch.tensor([0.0, 0.1, 0.4], dtype=torch.float64)
    h = torch.tensor([0.3, -2.0, 5.0], dtype=torch.float64)
    for loss in (
        lambda h, t, g: losses.ipo(h, t, g),
        lambda h, t, g: losses.kto(h, 0.2, torch.tensor([True, False, True]), t, g),
    ):
        mean = (1 - gamma) * loss(h, 1.0, gamma) + gamma * loss(h, 0.0, gamma)
        torch.testing.assert_close(mean, loss(h, 1.0, 0.0))
    aim = (1 / (2 * 0.1) / (1 - 2 * gamma)).requires_grad_()
    losses.ipo(aim, 1.0, gamma).sum().backward()
    torch.testing.assert_close(aim.grad, torch.zeros(3, dtype=torch.float64))


def test_dpo_takes_log_probabilities():
    ours = losses.dpo(*torch.tensor([[1.0], [0.5], [0.2], [0.4]]), flip_probability=0.2)
    seen = 0.8 * torch.sigmoid(torch.tensor([0.07])) + 0.2 * torch.sigmoid(torch.tensor([-0.07]))
    torch.testing.assert_close(ours, -torch.log(seen))


def test_trls_configuration_is_taken_with_the_noise_of_rows(base):
    rows = tiny.release(32, flip_probability=0.2)
    settings = {**ONE_STEP, "max_steps": 2, "per_device_train_batch_size": 8}
    theirs = trl.DPOConfig("out", bf16=False, **settings)
    given = DPOTrainer(base, theirs, train_dataset=rows)
    assert_same_steps(
        fit(given), fit(DPOTrainer(base, DPOConfig("out", **settings), train_dataset=rows))
    )
    assert type(theirs) is trl.DPOConfig
    with pytest.raises(LabelguardError, match="DPOConfig of labelguard_trainer or of trl"):
        DPOTrainer(base, trl.RewardConfig("out", bf16=False), train_dataset=rows)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("ipo", {"preference_loss": "forward"}, "IPO has no likelihood"),
        ("ipo", {"loss_type": ["robust"]}, "loss_type"),
        ("kto", {"preference_loss": "forward"}, "KTO has no likelihood"),
    ],
)
def test_a_loss_without_a_likelihood_says_so(kind, given, message, base):
    with pytest.raises(LabelguardError, match=message):
        step(kind, base, tiny.release(4, flip_probability=0.2), **given)


def test_the_package_lists_its_trainers_and_names_what_to_take_in_place_of_others():
    assert {"DPOTrainer", "KTOTrainer", "RewardTrainer"} <= set(dir(labelguard_trainer))
    for name in ("CPOTrainer", "ORPOTrainer"):
        with pytest.raises(AttributeError, match="DPOTrainer"):
            getattr(labelguard_trainer, name)


@pytest.mark.slow
def test_losses_need_torch_alone():
    code = "import sys, labelguard_trainer.losses; print({'trl', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_copies_of_a_pair_are_stock_dpo_on_probabilities(base, other, tmp_path):
    """Its loss and gradient are those of `soft`; of other probabilities, to within 1/(2k)."""
    from support.copies import release_copy

    import labelguard as lg

    copies = 4
    for probability, exact in (
        ([0.25, 0.5, 0.75, 1.0] * 4, True),
        ([0.3, 0.6, 0.9, 0.1] * 4, False),
    ):
        release = tmp_path / f"release-{exact}"
        release_copy(release, tiny.release_table(PAIRS, label_probability=probability))
        exported = lg.export(release, tmp_path / f"out-{exact}", to="trl", copies=copies)
        more = {"ref_model": tiny.loaded(other)}
        settings = {**ONE_STEP, "per_device_train_batch_size": PAIRS * copies, "beta": 0.5}
        rows = lg.load(release, "datasets")
        ours = DPOTrainer(base, DPOConfig("out", **settings), train_dataset=rows, **more)
        margin = np.abs(ours.margins(rows)).mean()
        stock = trl.DPOTrainer(
            base,
            args=trl.DPOConfig("out", bf16=False, **settings),
            train_dataset=tiny.read_pairs(exported.path),
            ref_model=tiny.loaded(other),
        )
        [soft], [gradient] = fit(ours)
        [plain], [other_gradient] = fit(stock)
        if exact:
            assert plain == pytest.approx(soft, abs=1e-5)
            torch.testing.assert_close(gradient, other_gradient, rtol=1e-3, atol=1e-5)
        else:
            assert 1e-4 < abs(plain - soft) <= margin / (2 * copies)


EXAMPLES = Path(__file__).parents[2] / "examples" / "noisy_losses"
FLIP = np.linspace(0.05, 0.4, 12)


@pytest.fixture
def rows():
    """Rows of unequal rates."""
    return tiny.release(12, flip_probability=FLIP)


def stock(base, rows, trainer, **given):
    """A trainer as it comes, at another reference than its model."""
    settings = {"max_length": 64, "max_steps": 1, "per_device_train_batch_size": 12, **QUIET}
    settings |= {"loss_type": ["robust"], "beta": 0.5, "bf16": False, **given}
    args = trl.DPOConfig("out", **settings)
    return trainer(base, args=args, train_dataset=rows, ref_model=tiny.gpt2(seed=1))


def first_loss(trainer):
    """The loss of the first step, and what `losses.robust` says of the same margins."""
    [loss], _ = fit(trainer)
    logged = trainer.state.log_history[0]
    return loss, logged


@pytest.fixture
def modules(monkeypatch):
    """Return what imports an example, with an axolotl that has a base of plug-ins alone."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = ("axolotl", "axolotl.integrations", "axolotl.integrations.base")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].BasePlugin = object
    return importlib.import_module


def compute_loss(base, rows):
    """The mean of the robust loss of each row, at margins of the model itself."""
    from labelguard_trainer import DPOConfig, DPOTrainer

    args = DPOConfig("out", max_length=64, beta=0.5, preference_loss="robust", **QUIET)
    ours = DPOTrainer(base, args, train_dataset=rows, ref_model=tiny.gpt2(seed=1))
    z = torch.tensor(ours.margins(rows))
    return float(losses.robust(z, torch.ones(12), torch.tensor(FLIP)).mean())


def test_any_dpo_trainer_takes_the_rate_of_each_row(base, rows, modules):
    """As a subclass, and by the plug-in of axolotl, whose base class is all that is not real."""
    wanted = compute_loss(base, rows)
    subclass = stock(base, rows, modules("any_dpo_trainer").NoisyDPOTrainer)
    assert first_loss(subclass)[0] == pytest.approx(wanted, abs=1e-4)
    plain = stock(base, rows, trl.DPOTrainer)
    modules("axolotl_plugin").NoisePlugin().post_trainer_create(None, plain)
    assert first_loss(plain)[0] == pytest.approx(wanted, abs=1e-4)
    assert first_loss(stock(base, rows, trl.DPOTrainer))[0] != pytest.approx(wanted, abs=1e-3)


@pytest.mark.slow
def test_a_plain_loop_learns_through_the_noise(base, tmp_path):
    release = release_copy(tmp_path / "release", tiny.release_table(24, flip_probability=0.2))
    command = [sys.executable, EXAMPLES / "plain_loop.py", release, base, tmp_path / "out"]
    subprocess.run(list(map(str, command)), check=True)
    assert weights(tmp_path / "out").keys() >= weights(Path(base)).keys()
