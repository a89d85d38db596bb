"""A project with one release, from which other things begin."""

from typing import Any

from support.preferences import TABLE

import labelguard as lg

PRICE: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "mechanism": "rr", "uses": 3}


def first_release(directory):
    """A new project with one release of the first 50 labels."""
    home = lg.init(directory)
    lg.privatize(TABLE.slice(0, 50), **PRICE, project=home)
    return home
