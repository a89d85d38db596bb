"""Cards of plans and releases in notebooks: small, without scripts, and loading nothing.

What they tell comes from anywhere (names of columns, prompts, cards of releases): it is escaped,
cut short, and kept from what notebooks make of formulas. Colors are those of the notebook.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape

from labelguard.text import escape_controls

# Letters of a text; the rest is left out.
_LONGEST = 200
# Facts of one name; the rest is left out.
_MOST = 12
_FORMULA = re.compile(r"[$\\]")
_CELL = 'style="text-align:left;vertical-align:top;padding:.1em 1em .1em 0;overflow-wrap:anywhere"'


def render_card(
    title: str, facts: Iterable[tuple[str, str]], *, picture: bytes = b"", caption: str = ""
) -> str:
    """Return a card as HTML: what it is about, names with values, and a picture.

    A `picture` is a PNG. Its `caption` says what it shows, for people who cannot see it.
    """
    body = "".join(
        f'<tr><th scope="row" {_CELL}>{_to_html(name)}</th><td {_CELL}>{_to_html(value)}</td></tr>'
        for name, value in facts
    )
    parts = [f"<p><strong>{_to_html(title)}</strong></p>", f"<table>{body}</table>"]
    if picture:
        data, alt = base64.b64encode(picture).decode("ascii"), escape(escape_controls(caption))
        parts.append(f'<img style="max-width:100%" alt="{alt}" src="data:image/png;base64,{data}">')
    frame = "border:1px solid #8888;border-radius:.4em;padding:.2em 1em .6em;max-width:50em"
    return f'<div class="labelguard mathjax_ignore" style="{frame}">{"".join(parts)}</div>'


def group_facts(name: str, values: Sequence[str]) -> list[tuple[str, str]]:
    """Facts that have one name together."""
    left = len(values) - _MOST
    more = [f"and {left:,} more"] if left > 0 else []
    return [("" if place else name, one) for place, one in enumerate([*values[:_MOST], *more])]


def _to_html(text: str) -> str:
    """Text that is nothing else: no tag, no formula, no letter that turns others."""
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    # A formula is found within one element only, so that each sign that may begin one has its own.
    return _FORMULA.sub(r"<span>\g<0></span>", escape(escape_controls(short)))
