"""Releases of one table in projects of their own, a model that knows little, and prompts."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import preferred_words, tiny_models, train_runs

import labelguard as lg
from labelguard.release.model_card import front_matter

RELEASES = {
    "head": {"mechanism": "statistic", "features": "length+style"},
    "second": {"mechanism": "statistic", "features": "length+text"},
    "flips": {"mechanism": "rr"},
}
PRICE = {"epsilon": 8.0, "delta": 1e-5}


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """A directory with `base` (a model), `prompts.parquet`, and copies of releases: `head`,
    `second` and `flips`.
    """
    here = tmp_path_factory.mktemp("study")
    tiny_models.saved(here / "base")
    prompts = pa.table({"prompt": ["tea?", "rain?", "tea?", "maps?"]})
    pq.write_table(prompts, here / "prompts.parquet")
    for name, own in RELEASES.items():
        home = lg.init(here / f"project-{name}")
        lg.privatize(train_runs.labels(), project=home, output=here / name, **PRICE, **own)
    return here


@pytest.fixture
def raw_model(study, tmp_path):
    """The directory of a model that learned from raw labels, as its card says."""
    model = shutil.copytree(study / "base", tmp_path / "raw")
    card = f"---\ntags: [non-private]\n{front_matter((), 'base')}---\n"
    (model / "TRAINING_CARD.md").write_text(card)
    return model


@pytest.fixture(scope="session")
def release(tmp_path_factory):
    """A release with a head."""
    return preferred_words.head(tmp_path_factory.mktemp("liked"))


@pytest.fixture(scope="session")
def reward(release):
    """Its reward."""
    return lg.reward(release)
