"""Charges as the ledger gets them, without a release behind them."""

import numpy as np

from labelguard.ledger.records import Charge


def charge_of(key, kind, labels, places, *, coins=False):
    """Return a charge of `labels` by labeler, each of whom has so many `places`."""
    who = sorted(labels)
    return Charge(
        mechanism=kind,
        event=kind,
        idempotency_key=key,
        settings={"mechanism": kind},
        labelers=np.array([[0, labeler] for labeler in who], np.uint64),
        capacity=np.array([places[labeler] for labeler in who]),
        charged=np.array([labels[labeler] for labeler in who]),
        prices={n: {"threshold": 1 << 62} for n in places.values()} if coins else {},
    )
