"""Real servers, each started once for the tests of this folder."""

import pytest
from integration.label_studio_server import label_studio_server


@pytest.fixture(scope="session")
def label_studio():
    """A Label Studio server."""
    with label_studio_server() as server:
        yield server


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, by Playwright."""
    pytest.importorskip("playwright", reason="Playwright is not installed")
    from integration.label_studio_page import CHROMIUM, chromium

    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with chromium() as found:
        yield found
