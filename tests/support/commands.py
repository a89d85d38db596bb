"""Commands as tests type them."""

from __future__ import annotations

FIRST = ("--once", "--yes", "--accept-little-use")
"""What a first release of a few labelers takes where nobody is there to ask."""
PRIVATIZE = ("privatize", "--mechanism", "rr", *FIRST)
"""`privatize` by randomized response, without a question."""
