"""The project's secret: one project key, for row keys, pseudonyms, and what proves records whole.

No randomness of a release comes from it: coins and noise live in the memory of the release that
draws them and are forgotten with it (`Coins`). So whoever holds the key learns which rows are
whose, and no label. It lives apart from the data (`keys/`, mode 0600, or the
directory named by LABELGUARD_KEYS), is never logged, and is never regenerated: without it, labels
that were released before could not be known from new ones.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from labelguard.errors import KeyProblem
from labelguard.keys.prf import Prf, RowKeys, Splits, derive_key
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.storage.files import (
    check_own_directory,
    read_mounted,
    read_own_file,
    write_atomically,
)

_KEY_HEADER = b"labelguard project key v1\n"

_SALT, _NONCE = 32, bytes(12)

# What the project needs for as long as it lives.
KEY_FILE = "project.key"

FILE, COMMAND = "LABELGUARD_KEY_FILE", "LABELGUARD_KEY_COMMAND"
# Seconds that the command may take.
_PATIENCE = 60


def random_bytes(count: int) -> bytes:
    """Return bytes from the operating system's generator."""
    return secrets.token_bytes(count)


class KeyRing:
    """The secrets of one project. Its repr shows nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._secret = _read_project_key(directory)

    def __repr__(self) -> str:
        return "KeyRing(…)"

    @classmethod
    def public(cls) -> KeyRing:
        """Return a ring under a key that everybody knows, for readings that release nothing.

        What they read has the same order everywhere, whatever the order of the input.
        """
        ring = cls.__new__(cls)
        ring._directory, ring._secret = Path(os.devnull), bytes(32)
        return ring

    @classmethod
    def create(cls, directory: Path) -> KeyRing:
        """Write a fresh project key; refuses to replace one."""
        path = directory / KEY_FILE
        if path.exists():
            raise KeyProblem(f"{path} exists already; keys are never regenerated")
        return cls._write(directory, random_bytes(32))

    @classmethod
    def _write(cls, directory: Path, secret: bytes) -> KeyRing:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_own_directory(directory, KeyProblem)
        write_atomically(directory / KEY_FILE, _KEY_HEADER + secret, mode=0o600)
        return cls(directory)

    def key_fingerprint(self) -> str:
        """Return a fingerprint of the project key that reveals nothing of it; the ledger keeps
        it.
        """
        return derive_key(self._secret, "check")[:16].hex()

    def mac(self, purpose: str, data: bytes) -> bytes:
        """Return the HMAC-SHA256 of `data` under the key for `purpose`."""
        return hmac.digest(derive_key(self._secret, purpose), data, "sha256")

    def verify(self, purpose: str, data: bytes, tag: bytes) -> bool:
        """Return whether `tag` is the `mac` of `data`."""
        return hmac.compare_digest(self.mac(purpose, data), tag)

    def seal(self, purpose: str, data: bytes, context: bytes) -> bytes:
        """Return `data` enciphered and authenticated, with the `context` that it must be found in.

        AES-256-GCM under a key of its own for every message, made of 32 random bytes: no number of
        messages wears a key out.
        """
        salt = random_bytes(_SALT)
        return salt + AESGCM(self._message_key(purpose, salt)).encrypt(_NONCE, data, context)

    def unseal(self, purpose: str, sealed: bytes, context: bytes) -> bytes:
        """Return the data. Raises `KeyProblem` if it was altered, or sealed for another context."""
        salt, enciphered = sealed[:_SALT], sealed[_SALT:]
        try:
            return AESGCM(self._message_key(purpose, salt)).decrypt(_NONCE, enciphered, context)
        except InvalidTag:
            raise KeyProblem(
                "sealed data was altered, or belongs to another project or place"
            ) from None

    def _message_key(self, purpose: str, salt: bytes) -> bytes:
        return hmac.digest(derive_key(self._secret, f"seal/{purpose}"), salt, "sha256")

    def row_keys(self) -> RowKeys:
        """Return the names of rows in private maps, the same in every release."""
        return RowKeys(derive_key(self._secret, "row"))

    def splits(self, held_out: float) -> Splits:
        """Return the splits by which a share of units is held out, for as long as the key lives."""
        return Splits(Prf(derive_key(self._secret, "held-out"), 1), held_out)

    def hash_records(self, connector: str, records: Iterable[str]) -> Blocks:
        """Return names of a tool's answers: keyed hashes of (connector, the tool's id), shape (n,
        2).
        """
        return self._hash_ids("record", connector, records)

    def hash_contents(self, digests: Blocks) -> Blocks:
        """Return pseudonyms of units that are contents (`--unit item`), shape (n, 2)."""
        return Prf(derive_key(self._secret, "unit"), 1)(digests)

    def digest_rows(self, columns: Mapping[str, NDArray[np.generic]]) -> Blocks:
        """Return a keyed digest of every row of named columns of at most 8 bytes; shape (n, 2)."""
        names = sorted(columns)
        values = [_to_uint64(columns[name]) for name in names]
        values += [np.zeros_like(values[0])] * (len(values) % 2)
        message = [np.stack(pair, axis=1) for pair in zip(values[::2], values[1::2], strict=True)]
        return Prf(derive_key(self._secret, "public/" + ",".join(names)), len(message))(*message)

    def hash_labelers(self, namespace: str, labeler_ids: Iterable[str]) -> Blocks:
        """Return pseudonyms of labelers: keyed hashes of (namespace, id), shape (n, 2)."""
        return self._hash_ids("labeler-id", namespace, labeler_ids)

    def _hash_ids(self, purpose: str, namespace: str, ids: Iterable[str]) -> Blocks:
        key, prefix = derive_key(self._secret, purpose), _length_prefixed(namespace)
        digests = (hmac.digest(key, prefix + _length_prefixed(name), "sha256")[:16] for name in ids)
        return blocks.from_bytes(b"".join(digests))

    def copy_to(self, directory: Path) -> KeyRing:
        """Write the project key into a directory without one, or with the same; the ring there."""
        path = directory / KEY_FILE
        if path.exists() and path.read_bytes() != _KEY_HEADER + self._secret:
            raise KeyProblem(f"{path} exists already; keys are never replaced")
        return self._write(directory, self._secret)


def _to_uint64(values: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Numbers of at most 8 bytes as 64 bits; different values stay different."""
    wide = values.astype(np.float64) if values.dtype.kind == "f" else values
    return wide.view(np.uint64) if wide.dtype.itemsize == 8 else wide.astype(np.uint64)


def _length_prefixed(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(8, "big") + data


def _read_project_key(directory: Path) -> bytes:
    """Return the 32 bytes of the project key: of its file or, if there is none, from the
    environment.
    """
    path = directory / KEY_FILE
    try:
        mounted = None if os.path.lexists(path) else _read_from_environment()
        if mounted is None:
            if not directory.is_dir():
                raise FileNotFoundError
            check_own_directory(directory, KeyProblem)
        data = read_own_file(path, KeyProblem) if mounted is None else mounted
    except FileNotFoundError:
        raise KeyProblem(
            f"{path} is missing; restore it from a backup or set LABELGUARD_KEYS: "
            "without it nothing can be released"
        ) from None
    where = str(path) if mounted is None else f"the key from {find_key_variable()}"
    if not data.startswith(_KEY_HEADER):
        raise KeyProblem(f"{where} is not a labelguard key file, or is damaged")
    if len(secret := data.removeprefix(_KEY_HEADER)) != 32:
        raise KeyProblem(f"{where} is damaged; restore it from a backup")
    return secret


def find_keys_directory(state: Path) -> Path:
    """Return the directory of the keys of the project at `state`."""
    override = os.environ.get("LABELGUARD_KEYS")
    return Path(override) if override else state / "keys"


def find_key_variable() -> str | None:
    """Return the environment variable that says where the project key comes from, if one does."""
    names = [name for name in (FILE, COMMAND) if os.environ.get(name)]
    if len(names) > 1:
        raise KeyProblem(f"{FILE} and {COMMAND} are both set; unset one")
    return names[0] if names else None


def _read_from_environment() -> bytes | None:
    """Return the content of the key file that the environment names; None if it names none.

    Raises `KeyProblem` for a file that somebody else could have replaced, and for a command that
    fails, takes longer than a minute, or cannot be run; what it printed is in no message.
    """
    name = find_key_variable()
    if name == FILE:
        return read_mounted(Path(os.environ[FILE]), KeyProblem)
    return _run_key_command(os.environ[COMMAND]) if name else None


@lru_cache(maxsize=1)
def _run_key_command(command: str) -> bytes:
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KeyProblem(f"{COMMAND} took more than {_PATIENCE} seconds") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "quotes that are never closed"
        raise KeyProblem(f"{COMMAND} cannot be run: {why}") from None
    if done.returncode:
        raise KeyProblem(f"{COMMAND} failed with exit code {done.returncode}")
    return done.stdout


SCHEME_VERSION = 3
NONCE_BYTES = 32


class Purpose(IntEnum):
    """The purpose of a coin; different purposes never share one."""

    CHANGES = 1
    TIE = 2
    ORDER = 3


class Coins:
    """The coins of one release of randomized response, which nothing keeps. Its repr is empty.

    A coin is 128 bits of a pseudorandom function, under a nonce drawn for this release alone, of
    what it is for, of a counter and of the row's key. The nonce lives in memory and is forgotten
    when the release is drawn: nobody, with whatever key, can draw a coin again, and two releases
    never share one, not even those of two copies of a project. Permanence (the same label keeps
    its value, free) comes from the private map. The encoding is injective: within a release no two
    draws share a coin.
    """

    def __init__(self, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, found {len(nonce)}")
        self._prf = Prf(nonce, 2)

    @classmethod
    def fresh(cls) -> Self:
        """Coins that nobody has tossed before."""
        return cls(random_bytes(NONCE_BYTES))

    def __repr__(self) -> str:
        return "Coins(…)"

    def draw(self, purpose: Purpose, row_keys: Blocks, counter: int = 0) -> Blocks:
        """Return 128 uniform bits a row, (n, 2); `row_keys` are (n, 2) and distinct."""
        field = np.array([[SCHEME_VERSION << 56 | int(purpose) << 48, counter]], np.uint64)
        prefix = self._prf.absorb(np.zeros_like(field), field)
        return self._prf.absorb(np.broadcast_to(prefix, row_keys.shape), row_keys)

    def draw_bytes(self, purpose: Purpose, row_keys: Blocks, size: int) -> NDArray[np.bytes_]:
        """Return a uniform number of `size` bytes a row, big-endian, (n,), for a multiple of 16."""
        words = [self.draw(purpose, row_keys, counter) for counter in range(size // 16)]
        numbers = np.ascontiguousarray(np.concatenate(words, axis=1).astype(">u8"))
        result: NDArray[np.bytes_] = numbers.view(f"S{size}")[:, 0]
        return result
