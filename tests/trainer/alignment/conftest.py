"""A release with a head, and its reward."""

import pytest
from support import preferred_words

import labelguard as lg


@pytest.fixture(scope="session")
def release(tmp_path_factory):
    return preferred_words.head(tmp_path_factory.mktemp("liked"))


@pytest.fixture(scope="session")
def reward(release):
    return lg.reward(release)
