"""Tasks and results as sealed bytes: an engine may write to its disks what it moves.

A task holds the project's secrets and the coins of a release; a result may hold labels. Both are
enciphered under a key of their own map, which goes to workers beside them, small enough to stay in
memory. What comes back is authenticated by the same key.
"""

from __future__ import annotations

import pickle
import secrets
import socket
from collections.abc import Callable
from typing import Any

import pyarrow
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from labelguard import __version__
from labelguard.errors import LabelguardError

_NONCE = 12
# AES-GCM takes no more at once.
_MOST_BYTES = (1 << 31) - 1


def new_key() -> bytes:
    """Return the key of one map."""
    return secrets.token_bytes(32)


def seal(key: bytes, value: object) -> bytes:
    """Return any value enciphered; raise `LabelguardError` for one of more than 2 GB."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    if len(data) > _MOST_BYTES:
        raise LabelguardError(
            "one bucket holds more than 2 GB; give the project more: buckets in labelguard.toml"
        )
    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, data, None)


def unseal(key: bytes, sealed: bytes) -> Any:
    """Return the value; raise `LabelguardError` if it was altered."""
    try:
        data = AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
    except InvalidTag:
        raise LabelguardError("the engine gave back what no worker sealed") from None
    return pickle.loads(data)


def seal_task(key: bytes, work: Callable[[Any, int], Any], task: object) -> bytes:
    """Return what a worker needs to run `work(task, bucket)`, sealed."""
    return seal(key, (_versions(), work, task))


def _versions() -> str:
    """Return what has to be the same everywhere: Parquet files name the pyarrow that wrote them."""
    return f"labelguard {__version__}, pyarrow {pyarrow.__version__}"


def run_sealed_task(sealed: bytes, key: bytes, bucket: int) -> bytes:
    """Run a sealed task on one bucket, in a worker; return its result, or its error, sealed."""
    versions, work, task = unseal(key, sealed)
    host = socket.gethostname()
    if versions != _versions():
        message = f"worker {host} has {_versions()}; expected {versions}"
        return seal(key, LabelguardError(message))
    try:
        return seal(key, work(task, bucket))
    except LabelguardError as error:
        return seal(key, error)
    except FileNotFoundError as error:
        # An error of Arrow has the name in its text alone.
        missing = error.filename or str(error).partition("'")[2].partition("'")[0]
        message = (
            f"worker {host} does not find {missing}; an engine needs the project and its "
            "inputs on a file system that every worker sees under the same path"
        )
        return seal(key, LabelguardError(message))
    except Exception as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        message = f"worker {host}: {why}; nothing is lost: mend it and run the same command again"
        return seal(key, LabelguardError(message))


def open_result(key: bytes, sealed: bytes) -> Any:
    """Return the result of a worker, or raise its error."""
    result = unseal(key, sealed)
    if isinstance(result, LabelguardError):
        raise result
    return result
