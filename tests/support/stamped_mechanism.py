"""A mechanism that releases a file more, and has an option of its own."""

from dataclasses import dataclass, replace
from typing import ClassVar

from labelguard.options import option


@dataclass(frozen=True)
class Door:
    mechanism: ClassVar[str] = "stamped_part:open_mechanism"
    stamp: int = option("What is stamped.", default=1, metavar="N")


def open_mechanism(options):
    from labelguard.release.mechanisms.rr import RandomizedResponse

    class Stamped(RandomizedResponse):
        name, version = "stamped", 7

        def settings(self):
            return {"stamp": options.stamp}

        def finish(self, job, prepared, grant):
            path = job.opened.project.work / "stamp.txt"
            path.write_text(str(options.stamp))
            return replace(super().finish(job, prepared, grant), files=(path,))

    return Stamped()


door = Door
