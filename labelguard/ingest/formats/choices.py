"""Choices of the best of several responses, by its number."""

from __future__ import annotations

from labelguard.ingest.formats.seen import Format

CHOICES = Format(
    "choices",
    "prompt, responses, choice (the number of the preferred response, from 0)",
    lambda seen: seen.all("prompt", "responses", "choice") and not seen.all("ranks"),
    fits=lambda seen: seen.all("prompt", "responses"),
)
