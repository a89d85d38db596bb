"""Nothing of leaving depends on labels: not what is purged, shown, left out or released later."""

import pyarrow.parquet as pq
import pytest
from support.preferences import ASKED, LAYOUTS
from support.scenarios import ALL, STATISTIC
from support.worlds import Run, Scenario, differences

from labelguard.inputs import quarantine

WHO = f"worker {ASKED.labeler[3]}"
"""Whose row is set aside in `worlds`."""
QUARANTINE = ("--bad-rows", "quarantine")
LEAVING = (
    *("labeler show 'worker 5'", "labeler retire 'worker 5' --yes"),
    *(f"labeler show '{WHO}' --json", f"labeler erase '{WHO}' --yes"),
    *(f"labeler erase '{WHO}' --yes --json", f"labeler show '{WHO}'", "labeler show --json"),
)


def leaving(*options):
    """A release before some leave, and one after."""
    runs = (
        Run((*QUARANTINE, *options), bad=True),
        Run((*QUARANTINE, *options), bad=True, before=LEAVING),
    )
    return Scenario(runs)


@pytest.mark.quick("coins-pairs", "statistic-pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [(), STATISTIC], ids=["coins", "statistic"])
def test_nothing_of_leaving_depends_on_raw_labels(layout, options, tmp_path):
    assert differences(tmp_path, layout, leaving(*options), ALL) == []


@pytest.mark.slow
def test_a_count_of_preferences_would_be_found(tmp_path, monkeypatch):
    """Negative control: a purge that tells how its rows were labelled."""
    purge = quarantine.remove_departed_rows

    def talking(directory, leavers):
        labels = [pq.read_table(path)["label"] for path in directory.rglob("*.parquet")]
        told = sum(one.to_pylist().count(1) for one in labels)
        return quarantine.RawRows(purge(directory, leavers).rows + told)

    monkeypatch.setattr(quarantine, "remove_departed_rows", talking)
    found = differences(tmp_path, "pairs", leaving(), ALL)
    assert found and all("labeler erase" in name for name in found)
