"""Releases as tests make them: a first one is for itself alone, and waits for no forecast."""

from support.codings import choose_coding

import labelguard as lg


def make_release(source=None, **options):
    """Return what `lg.privatize` returns, a first release being made `once`, of whatever use."""
    several = any(options.get(name) for name in ("once", "uses", "recurring"))
    usual = {"accept_little_use": True, "once": not several, "label_values": choose_coding(source)}
    return lg.privatize(source, **usual | options)
