"""What a base model learned from, by the cards of directories."""

import json

import pytest

from labelguard.errors import LabelguardError
from labelguard.release.model_card import LearnedRelease, base_of, front_matter

ONE = LearnedRelease("r0001-a", "0" * 64, 1.0, 1e-5, "labeler")


def write_card(directory, learned, tags="[]"):
    directory.mkdir()
    card = f"---\ntags: {tags}\n{front_matter(learned, 'base')}---\n"
    (directory / "TRAINING_CARD.md").write_text(card)


def write_adapter(directory, below):
    directory.mkdir()
    settings = {"base_model_name_or_path": str(below)}
    (directory / "adapter_config.json").write_text(json.dumps(settings))


def test_an_adapter_without_a_card_is_what_the_model_below_it_is(tmp_path):
    write_card(tmp_path / "raw", (), "[non-private]")
    write_card(tmp_path / "of-release", (ONE,))
    for name in ("raw", "of-release"):
        write_adapter(tmp_path / f"{name}-adapter", tmp_path / name)
    assert base_of(str(tmp_path / "of-release-adapter"), private=True) == (ONE,)
    with pytest.raises(LabelguardError, match="raw labels"):
        base_of(str(tmp_path / "raw-adapter"), private=True)
    assert base_of(str(tmp_path / "raw-adapter"), private=False) == ()


@pytest.mark.parametrize("below", [".", "openai-community/gpt2", None])
def test_of_an_adapter_of_nothing_here_nothing_is_known(tmp_path, below):
    write_adapter(tmp_path / "adapter", tmp_path / "adapter" if below == "." else below)
    assert base_of(str(tmp_path / "adapter"), private=True) == ()


def test_adapters_of_adapters_are_followed_and_not_in_circles(tmp_path):
    write_card(tmp_path / "base", (ONE,))
    for name, below in (("a", "base"), ("b", "a"), ("c", "d"), ("d", "c")):
        write_adapter(tmp_path / name, tmp_path / below)
    assert base_of(str(tmp_path / "b"), private=True) == (ONE,)
    assert base_of(str(tmp_path / "c"), private=True) == ()
