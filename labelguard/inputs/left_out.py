"""Reasons why no release counts a row or an answer, and a sentence that counts them."""

from __future__ import annotations

from collections.abc import Mapping

GROUND_TRUTH, DRAFT, MACHINE = "ground truth", "draft", "machine annotator"
# Public only where the policy says that blank labels are.
SKIP = "skip"
UNREADABLE = "not understood"
_REMEDIES = {
    GROUND_TRUTH: "Label Studio marks imported annotations as ground truth: import them with "
    '"ground_truth": false, or take the star off them',
    DRAFT: "drafts count once they are submitted",
    UNREADABLE: "see: labelguard hook dead-letters list",
}


def describe_counts(counts: Mapping[str, int]) -> str:
    """Say how many for which reason, and what to do: `2,000 (ground truth), 3 (draft); …`."""
    listed = ", ".join(f"{count:,} ({reason})" for reason, count in counts.items())
    remedies = (_REMEDIES[reason] for reason in counts if reason in _REMEDIES)
    return "; ".join([listed, *remedies])
