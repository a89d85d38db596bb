"""Labels are read once their charge is there to stay, and not before."""

from __future__ import annotations

from support.lives import PRICE, TABLE

import labelguard as lg
from labelguard.ledger.ledger import Ledger
from labelguard.storage import buckets


def test_a_release_is_charged_and_marked_before_a_label_is_read(project, monkeypatch):
    seen: list[str] = []

    def watch(owner, name, counts=lambda given: True):
        done = getattr(owner, name)

        def watched(*given, **options):
            found = done(*given, **options)
            if counts(given):
                seen.append(name)
            return found

        monkeypatch.setattr(owner, name, watched)

    for act in ("begin_job", "charge", "start", "mark_drawn"):
        watch(Ledger, act)
    watch(buckets, "column", lambda given: given[1] == "label")
    lg.privatize(TABLE.slice(0, 20), **PRICE, project=project)
    told = seen[seen.index("begin_job") :]  # it was staged before, in an order of its own
    assert list(dict.fromkeys(told)) == ["begin_job", "charge", "start", "column", "mark_drawn"]
