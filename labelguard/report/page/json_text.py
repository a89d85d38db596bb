"""A report as JSON: its fields, with all text in ASCII."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelguard.report.page.document import Report


def rendered(report: Report) -> str:
    """The report's fields; control characters and signs that turn text are escaped."""
    return json.dumps(asdict(report), indent=2, allow_nan=False) + "\n"
