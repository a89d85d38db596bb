"""A project with one release, from which other things begin."""

from typing import Any

from support.preferences import TABLE
from support.releases import make_release

import labelguard as lg
from labelguard.project import policies

PRICE: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "mechanism": "rr", "uses": 3}


def first_release(directory):
    """A new project with one release of the first 50 labels."""
    home = lg.init(directory)
    make_release(TABLE.slice(0, 50), **PRICE, project=home)
    return home


def put_into_force(project, name, *allow, **options):
    """A new policy with these allowances, in force; what `policies.new` says of it."""
    made = policies.new(
        name, allow=allow, project=project, **{"epsilon": 3, "delta": 1e-5} | options
    )
    policies.activate(name, project)
    return made
