"""Real servers, each started once for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from integration.label_studio_server import LabelStudioServer, label_studio_server


@pytest.fixture(scope="session")
def label_studio() -> Iterator[LabelStudioServer]:
    """A Label Studio server."""
    with label_studio_server() as server:
        yield server
