"""Real servers, each started once for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from integration.label_studio_server import LabelStudioServer, label_studio_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def label_studio() -> Iterator[LabelStudioServer]:
    """A Label Studio server."""
    with label_studio_server() as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, by Playwright."""
    pytest.importorskip("playwright", reason="Playwright is not installed")
    from integration.label_studio_page import CHROMIUM, chromium

    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with chromium() as found:
        yield found
