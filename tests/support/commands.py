"""Commands as tests type them."""

from __future__ import annotations

PRIVATIZE = ("privatize", "--mechanism", "rr", "--yes")
"""`privatize` by randomized response, without a question."""
