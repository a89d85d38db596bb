"""Examples of docstrings as code: Markdown wants an empty line before it, Python does not."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Puts that line below each `Example:` whose next line is indented."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every object that it has read."""
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"(?m)^(Examples?:)\n(?= )", r"\1\n\n", text)
