"""The project's secrets: one project key, and a random salt for every labeler.

Whoever holds both undoes every randomized-response release, so they live apart from the data
(`keys/`, mode 0600, or the directory named by LABELGUARD_KEYS), are never logged, and are never
regenerated: a new key would draw new coins for old labels and reveal them.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from labelguard import block128
from labelguard._files import fsync_path, write_atomically
from labelguard.block128 import Blocks
from labelguard.errors import KeyProblem
from labelguard.prf import Prf, derive_key
from labelguard.pseudonyms import Pseudonyms

_KEY_HEADER = b"labelguard project key v1\n"
_SALTS_HEADER = b"labelguard salts v1\n"
_NONCE_HEADER = b"labelguard nonce v1\n"
_PSEUDONYMS_HEADER = b"labelguard pseudonyms v1\n"
_SUM_HEADER = b"labelguard sum v1\n"

KEY_FILES = ("project.key", "salts", "pseudonyms")
"""What must be kept for as long as the project lives."""


def random_bytes(count: int) -> bytes:
    """Bytes from the operating system's generator."""
    return secrets.token_bytes(count)


class KeyRing:
    """The secrets of one project. Its repr shows nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._secret = _read_private(directory / "project.key", _KEY_HEADER)
        if len(self._secret) != 32:
            raise KeyProblem(f"{directory / 'project.key'} is damaged; restore it from a backup")
        self._unit_prf = Prf(derive_key(self._secret, "unit"), 3)
        self._wrap = Prf(derive_key(self._secret, "salt-wrap"), 1)
        self._labelers, self._wrapped = self._read_salts()
        self._stored = len(self._labelers)
        self._unsaved = False

    def __repr__(self) -> str:
        return "KeyRing(…)"

    @classmethod
    def create(cls, directory: Path) -> KeyRing:
        """Write a fresh project key; refuses to replace one."""
        path = directory / "project.key"
        if path.exists():
            raise KeyProblem(f"{path} exists already; keys are never regenerated")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, _KEY_HEADER + random_bytes(32), mode=0o600)
        return cls(directory)

    def check_value(self) -> str:
        """A fingerprint of the project key that reveals nothing of it; the ledger keeps it."""
        return derive_key(self._secret, "check")[:16].hex()

    def mac(self, purpose: str, data: bytes) -> bytes:
        """HMAC-SHA256 of `data` under the key for `purpose`."""
        return hmac.digest(derive_key(self._secret, purpose), data, "sha256")

    def verify(self, purpose: str, data: bytes, tag: bytes) -> bool:
        """Whether `tag` is the `mac` of `data`."""
        return hmac.compare_digest(self.mac(purpose, data), tag)

    def pseudonyms(self, fingerprint: str | None = None) -> Pseudonyms:
        """How the ledger names labelers: as it always did, or by the secret of the last change.

        `fingerprint` is what the ledger says of that secret: a change that reached the ledger, but
        crashed before it was completed here, is completed.
        """
        path, waiting = self._directory / "pseudonyms", self._directory / "pseudonyms.new"
        following = _naming(waiting) if fingerprint and waiting.exists() else None
        if following and following.fingerprint == fingerprint:
            with contextlib.suppress(FileNotFoundError):  # somebody else has just done it
                waiting.replace(path)
                fsync_path(self._directory)
            return following
        return _naming(path) if path.exists() else Pseudonyms()

    def prepare_pseudonyms(self) -> Pseudonyms:
        """Names under a fresh secret, kept beside the present one until the ledger has them."""
        path = self._directory / "pseudonyms.new"
        write_atomically(path, _PSEUDONYMS_HEADER + random_bytes(32), mode=0o600)
        return _naming(path)

    def coin_prf(self, lineage: str = "") -> Prf:
        """The function of (salt, item, what is drawn) that coins and row keys come from.

        Coins of a project that was restored come from one of its own (see `labelguard.lineage`);
        row keys never change.
        """
        return Prf(derive_key(self._secret, f"coin/{lineage}" if lineage else "coin"), 3)

    def labeler_keys(self, namespace: str, labeler_ids: Iterable[str]) -> Blocks:
        """Pseudonyms of labelers: keyed hashes of (namespace, id), shape (n, 2)."""
        key = derive_key(self._secret, "labeler-id")
        prefix = _length_prefixed(namespace.encode())
        digests = b"".join(
            hmac.digest(key, prefix + _length_prefixed(labeler.encode()), "sha256")[:16]
            for labeler in labeler_ids
        )
        return block128.from_bytes(digests)

    def unit_keys(self, labelers: Blocks, items: Blocks, occurrences: Blocks) -> Blocks:
        """Pseudonyms where every label is a unit of its own (`--unit item`)."""
        return self._unit_prf(labelers, items, occurrences)

    def salts(self, labelers: Blocks) -> Blocks:
        """The salt of each labeler; all must exist (see `add_salts`)."""
        self.require_salts(labelers)
        where = block128.positions(self._labelers, labelers)
        return self._wrap.invert(self._wrapped[where])

    def has_salt(self, labelers: Blocks) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether each labeler has a salt."""
        return block128.positions(self._labelers, labelers) >= 0

    def require_salts(self, labelers: Blocks) -> None:
        """Refuse to go on if labelers who were charged have lost their salts."""
        lost = int((~self.has_salt(labelers)).sum())
        if lost:
            raise KeyProblem(
                f"{lost} of the labelers charged have no salt in {self._directory / 'salts'}; "
                "restore the keys from a backup: they are never regenerated"
            )

    def add_salts(self, labelers: Blocks) -> None:
        """Draw salts for labelers (distinct) that have none. Kept in memory until `save`."""
        new = labelers[~self.has_salt(labelers)]
        if not len(new):
            return
        wrapped = self._wrap(block128.from_bytes(random_bytes(16 * len(new))))
        merged = np.concatenate([self._labelers, new])
        order = block128.order(merged)
        self._labelers = merged[order]
        self._wrapped = np.concatenate([self._wrapped, wrapped])[order]
        self._unsaved = True

    def save(self) -> None:
        """Flush new salts to disk; to be called before any coin is drawn with them."""
        if not self._unsaved:
            return
        if len(self._read_salts()[0]) != self._stored:
            raise KeyProblem(
                f"{self._directory / 'salts'} was changed by somebody else; "
                "every project needs a keys directory of its own"
            )
        payload = block128.to_bytes(self._labelers) + block128.to_bytes(self._wrapped)
        tag = self.mac("salts", payload)
        write_atomically(self._directory / "salts", _SALTS_HEADER + tag + payload, mode=0o600)
        self._stored = len(self._labelers)
        self._unsaved = False

    def destroy_salts(self, labelers: Blocks) -> int:
        """Forget the salts of labelers who leave, on disk too; how many there were.

        Then nobody can undo their coins or find their rows in the private map, not even with the
        project key. The file is replaced as a whole: copies of it, and what the medium keeps of
        blocks no longer in use, are beyond this program.
        """
        stays = block128.positions(block128.unique(labelers)[0], self._labelers) < 0
        gone = int((~stays).sum())
        if gone:
            self._labelers, self._wrapped = self._labelers[stays], self._wrapped[stays]
            self._unsaved = True
            self.save()
        return gone

    def nonce(self, release_id: str) -> bytes:
        """The secret that the noise of a release comes from: drawn once, kept until `forget`."""
        path = self._directory / "nonces" / release_id
        if not path.exists():
            path.parent.mkdir(exist_ok=True, mode=0o700)
            write_atomically(path, _NONCE_HEADER + random_bytes(32), mode=0o600)
        nonce = _read_private(path, _NONCE_HEADER)
        if len(nonce) != 32:
            raise KeyProblem(f"{path} is damaged; release {release_id} cannot be resumed")
        return nonce

    def kept(self, release_id: str) -> bytes | None:
        """PRIVATE: what a release that was begun is about to hide under its noise."""
        path = self._directory / "nonces" / f"{release_id}.sum"
        return _read_private(path, _SUM_HEADER) if path.exists() else None

    def keep(self, release_id: str, exact: bytes) -> None:
        """Keep it until `forget`: a resumed release adds its noise to this and to nothing else."""
        path = self._directory / "nonces" / f"{release_id}.sum"
        write_atomically(path, _SUM_HEADER + exact, mode=0o600)

    def forget(self, release_id: str) -> None:
        """Destroy what was kept for a release that is committed, and its nonce."""
        for name in (f"{release_id}.sum", release_id):
            (self._directory / "nonces" / name).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Destroy every nonce, and what was kept with them: no release can be resumed."""
        shutil.rmtree(self._directory / "nonces", ignore_errors=True)

    def secrets(self) -> dict[str, bytes]:
        """The files that a backup of the keys is made of; never nonces, which serve once."""
        paths = [self._directory / name for name in KEY_FILES]
        return {path.name: path.read_bytes() for path in paths if path.exists()}

    @classmethod
    def install(cls, directory: Path, files: Mapping[str, bytes]) -> KeyRing:
        """Put `secrets` of another directory into one without a project key, or with the same."""
        path = directory / "project.key"
        if path.exists() and path.read_bytes() != files["project.key"]:
            raise KeyProblem(f"{path} exists already; keys are never replaced")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in reversed(KEY_FILES):  # the project key last: it makes the directory count
            if name in files:
                write_atomically(directory / name, files[name], mode=0o600)
        return cls(directory)

    def _read_salts(self) -> tuple[Blocks, Blocks]:
        path = self._directory / "salts"
        if not path.exists():
            return np.zeros((0, 2), np.uint64), np.zeros((0, 2), np.uint64)
        data = _read_private(path, _SALTS_HEADER)
        tag, payload = data[:32], data[32:]
        if len(payload) % 32 or not hmac.compare_digest(tag, self.mac("salts", payload)):
            raise KeyProblem(f"{path} is damaged or belongs to another project key")
        half = len(payload) // 2
        return block128.from_bytes(payload[:half]), block128.from_bytes(payload[half:])


def _naming(path: Path) -> Pseudonyms:
    return Pseudonyms(_read_private(path, _PSEUDONYMS_HEADER))


def _length_prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


def _read_private(path: Path, header: bytes) -> bytes:
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except FileNotFoundError:
        raise KeyProblem(
            f"{path} is missing; restore it from a backup or set LABELGUARD_KEYS: "
            "without it no label can be released again"
        ) from None
    except OSError as error:
        raise KeyProblem(f"{path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise KeyProblem(f"{path} is readable by others (mode {mode & 0o777:o}); chmod 600 it")
    if not data.startswith(header):
        raise KeyProblem(f"{path} is not a labelguard key file, or is damaged")
    return data[len(header) :]


def keys_directory(state: Path) -> Path:
    """Where the keys of the project at `state` live."""
    override = os.environ.get("LABELGUARD_KEYS")
    return Path(override) if override else state / "keys"
