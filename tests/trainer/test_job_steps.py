"""Language models as steps of a retraining job: trained and asked like `labelguard train`."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support import tiny_models, train_runs

from labelguard.errors import LabelguardError
from labelguard.jobs.steps import TrainingTask, open_step
from labelguard.release.model_card import front_matter
from labelguard.release.pairs_file import read_preferred
from labelguard.text import no_progress


def _step(shop, kind, **options):
    return open_step(kind, {"model": "base", "train_config": "config.yaml", **options}, shop)


def _train(step, shop, output):
    nowhere: Any = None  # a language model asks no project
    return step.train(TrainingTask(shop / "rr", nowhere, output, None, no_progress))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("dpo", {}),
        ("reward", {}),
        ("dpo", {"lora": "r=4,alpha=8"}),
        ("reward", {"lora": "r=4,alpha=8"}),
    ],
)
def test_a_model_is_trained_once_and_its_margins_are_those_of_its_trainer(shop, kind, options):
    step = _step(shop, kind, **options)
    step.check("rr", None)
    learned = _train(step, shop, Path("model"))
    assert learned.facts == {"base": "base", "steps": 20}
    assert [point["step"] for point in learned.curve] == sorted(p["step"] for p in learned.curve)
    before = train_runs.weights(Path("model"))
    assert _train(step, shop, Path("model")) == learned
    after = train_runs.weights(Path("model"))
    assert all(np.array_equal(before[name], after[name]) for name in before)

    probes = read_preferred(shop / "probes.parquet")
    margins = step.margins(Path("model"), probes)
    turned = pa.table(
        [probes["prompt"], probes["rejected"], probes["chosen"]],
        names=["prompt", "chosen", "rejected"],
    )
    assert np.allclose(step.margins(Path("model"), turned), -margins, atol=1e-4)
    from labelguard_trainer import train

    own = train(
        kind,  # type: ignore[arg-type]
        shop / "rr",
        shop / "base",
        output=Path("own"),
        config=shop / "config.yaml",
        probes=shop / "probes.parquet",
        lora=options.get("lora"),
    )
    assert own.evaluation.probes is not None
    assert float(((np.sign(margins) + 1) / 2).mean()) == own.evaluation.probes.accuracy


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "nowhere/at-all"}, r"options\.model: .*nowhere/at-all, and the hub does not"),
        ({"model": "./nowhere"}, r"options\.model: there is no directory .*nowhere$"),
        ({"model": "models/of/ours"}, r"options\.model: there is no directory .*models/of/ours$"),
        ({"model": None}, r"options\.model is missing: a directory, or an id of a hub"),
        ({"lora": "r=4"}, "LoRA is written"),
        ({"train_config": "missing.yaml"}, "missing.yaml"),
        ({"epochs": 3}, r"train\.options\.epochs: "),
        ({"holdout": "much"}, r"train\.options\.holdout: "),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_is_charged(shop, options, said):
    with pytest.raises(LabelguardError, match=said):
        _step(shop, "dpo", **options).check("rr", None)


def test_a_base_of_raw_labels_is_refused(shop):
    tiny_models.saved(Path("raw"))
    matter = front_matter((), "raw")
    card = f"---\ntags:\n- non-private\n{matter}---\n"
    (Path("raw") / "TRAINING_CARD.md").write_text(card)
    with pytest.raises(LabelguardError, match="raw labels"):
        _step(shop, "dpo", model="raw").check("rr", None)
