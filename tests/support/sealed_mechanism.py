"""A mechanism that seals its releases, and says so in card and report."""

from dataclasses import dataclass, replace
from typing import ClassVar


@dataclass(frozen=True)
class Door:
    mechanism: ClassVar[str] = "sealed_part:open_mechanism"
    report: ClassVar[str] = "sealed_part:describe"


def open_mechanism(options):
    from labelguard.release.mechanisms.rr import RandomizedResponse

    class Sealed(RandomizedResponse):
        name, version = "sealed", 1

        def finish(self, job, prepared, grant):
            made = super().finish(job, prepared, grant)
            return replace(made, card={**made.card, "seal": {"wax": "red <b>"}})

    return Sealed()


def describe(card):
    from labelguard.release.sections import Chart, Section, Series, Table

    yield Section(
        "seal",
        "The seal of this release",
        ("It is sealed with wax.",),
        Table("Seals", ("seal", "wax"), ((1, card["seal"]["wax"]),)),
        Chart("Wax", "One seal.", "bars", ("red",), "wax", "seals", (Series("seals", (1,)),)),
        facts=(("wax", card["seal"]["wax"]), ("  duplicates", "none to speak of")),
    )


door = Door
