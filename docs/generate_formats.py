"""Writes the table of formats into docs/formats.md: `python docs/generate_formats.py`."""

import re
from pathlib import Path

from labelguard.inputs.shapes import SHAPES

PAGE = Path(__file__).parent / "formats.md"
_HEADS = ("format", "columns", "prompt, sides", "label", "who labeled")
_BETWEEN = re.compile("(<!-- shapes -->\n).*(<!-- end of shapes -->)", re.DOTALL)


def render_page() -> str:
    """Return the page with the table of shapes as it is declared."""
    tools = ("argilla", "label-studio", "prodigy")
    rows = [
        (f"`{name}`", one.columns, one.contents, one.label, one.labelers)
        for name, one in sorted(SHAPES.items(), key=lambda item: item[0] in tools)
    ]
    lines = [_HEADS, ("---",) * len(_HEADS), *rows]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace(" --- ", "---")
    between = lambda match: match[1] + table + match[2]  # noqa: E731 - no escapes in it
    return _BETWEEN.sub(between, PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
