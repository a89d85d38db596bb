"""Witnesses: small files that remember how far the ledger had come, so that it cannot fall back.

A ledger restored from an old backup has forgotten what was spent since. Whoever opens it compares
it with the newest journal entry that each witness has seen; one file lies in the project's state
and one beside its keys, which are often kept and restored apart. Against a rollback of everything
at once only an anchor helps that is kept elsewhere (`labelguard budget anchor`). One file alone
still guards, and the other is written again; without any the ledger is not opened, and a restored
project has new ones (`labelguard.project.restore`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from labelguard.errors import LedgerError
from labelguard.ledger import journal
from labelguard.storage.files import write_atomically

FILE = "ledger.head"


class Witness:
    """Files that hold number and digest of the newest journal entry known."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def check(self, connection: sa.Connection, address: str) -> None:
        """Raise `LedgerError` unless there is a witness and the ledger holds every entry seen."""
        if self._paths and not self.seen():
            raise LedgerError(
                f"{' and '.join(map(str, self._paths))} are missing, which would tell whether the "
                f"ledger at {address} is an older copy; put one back, or restore the newest "
                "backup: labelguard project restore"
            )
        held: dict[int, str | None] = {}  # the files mostly know the same entry
        for path in self._paths:
            seen = _read(path)
            if seen and seen[0] not in held:
                held[seen[0]] = journal.digest_of(connection, seen[0])
            if seen and held[seen[0]] != seen[1]:
                raise LedgerError(
                    f"the ledger at {address} is not what this project last saw (journal entry "
                    f"{seen[0]}, in {path}): it is an older copy, or was rewritten, and would "
                    "forget what was spent; put the newest copy back"
                )

    def seen(self) -> list[tuple[int, str]]:
        """Number and digest of the newest entry that each file knows."""
        return [found for path in self._paths if (found := _read(path))]

    def replace(self, number: int, digest: str) -> None:
        """Know this entry from now on, whatever was seen before: a ledger was restored."""
        for path in self._paths:
            write_atomically(path, f"{number} {digest}\n".encode(), mode=0o600)

    def note(self, number: int, digest: str) -> None:
        """Remember an entry that is committed."""
        for path in self._paths:
            seen = _read(path)
            if (seen is None or seen[0] < number) and path.parent.is_dir():
                try:
                    write_atomically(path, f"{number} {digest}\n".encode(), mode=0o600)
                except OSError as error:
                    raise LedgerError(
                        f"{path} cannot be written: {error.strerror}; nothing is lost: make it "
                        "writable, or make room, and run the same command again"
                    ) from None


def _read(path: Path) -> tuple[int, str] | None:
    try:
        number, digest = path.read_text(encoding="ascii").split()
        return int(number), digest
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, UnicodeDecodeError):
        raise LedgerError(f"{path} is damaged; restore it from a backup") from None
