"""Raw rows of labelers who leave: found and removed in every store of a project."""

from __future__ import annotations

from labelguard.inputs import quarantine
from labelguard.inputs.quarantine import DepartedLabelers, RawRows
from labelguard.project.opening import OpenProject


def find(opened: OpenProject, departed: DepartedLabelers) -> RawRows:
    """Return what is stored of these labelers: rows in quarantine, and answers."""
    quarantined = quarantine.find(opened.project.quarantine, departed)
    return quarantined + opened.answers.remove(departed, row_keys(opened, departed), None)


def purge(opened: OpenProject, departed: DepartedLabelers, epoch: int) -> RawRows:
    """Remove it, from disk too; return what there was. May be called again after a crash.

    A job's scratch space goes with the job.
    """
    # It names answers without labelers, and the next release writes it anew.
    opened.project.outside.unlink(missing_ok=True)
    quarantined = quarantine.purge(opened.project.quarantine, departed)
    return quarantined + opened.answers.remove(departed, row_keys(opened, departed), epoch)


def row_keys(opened: OpenProject, departed: DepartedLabelers) -> set[bytes]:
    """Return the keys of their rows in all private maps."""
    private_map = opened.private_map
    return {
        key for release in opened.maps for key in private_map.keys_of(release, departed.labelers)
    }
