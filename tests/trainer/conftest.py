"""Tests that load torch are one group, for one process: loading TRL takes ten seconds."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector,
) -> Generator[None, Any, Any]:
    """Put every test of this folder into the group."""
    made = yield
    for case in made if isinstance(made, list) else ():
        case.add_marker(pytest.mark.xdist_group("trl"))
    return made
