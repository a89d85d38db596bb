"""Files under a passphrase: how a backup carries keys.

Scrypt makes a key of the passphrase, AES-256-GCM enciphers with it; the header, one line of JSON,
says with which parameters, and is authenticated with the rest.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from labelguard.errors import KeyProblem
from labelguard.keys import keyring

COST = {"n": 1 << 17, "r": 8, "p": 1}
"""128 MiB and about half a second for every guess at a passphrase (RFC 7914). Tests lower it."""
_MOST = {"n": 1 << 18, "r": 8, "p": 4}
"""A header is believed before it is authenticated: up to 256 MiB and a few seconds."""


def seal(files: Mapping[str, bytes], passphrase: str) -> bytes:
    """Files by name, enciphered. Raises `KeyProblem` for an empty passphrase."""
    if not passphrase:
        raise KeyProblem("the passphrase is empty; keys are never written without one")
    salt, nonce = keyring.random_bytes(16), keyring.random_bytes(12)
    fields = {"format": 1, "kdf": "scrypt", "cipher": "AES-256-GCM"} | COST
    fields |= {"salt": salt.hex(), "nonce": nonce.hex()}
    header = json.dumps(fields, sort_keys=True).encode() + b"\n"
    clear = json.dumps({name: base64.b64encode(data).decode() for name, data in files.items()})
    return header + AESGCM(_key(passphrase, fields)).encrypt(nonce, clear.encode(), header)


def unseal(data: bytes, passphrase: str) -> dict[str, bytes]:
    """The files again. Raises `KeyProblem` for another passphrase, or if `data` was altered."""
    header, newline, sealed = data.partition(b"\n")
    try:
        fields = json.loads(header)
        if fields["format"] != 1 or any(fields[name] > most for name, most in _MOST.items()):
            raise ValueError
        key = _key(passphrase, fields)
        clear = AESGCM(key).decrypt(bytes.fromhex(fields["nonce"]), sealed, header + newline)
    except InvalidTag:
        raise KeyProblem("the passphrase is not the one of this backup's keys") from None
    except (ValueError, KeyError, TypeError):
        raise KeyProblem("the keys in the backup are damaged; use another backup") from None
    return {name: base64.b64decode(text) for name, text in json.loads(clear).items()}


def _key(passphrase: str, fields: Mapping[str, Any]) -> bytes:
    cost = {name: int(fields[name]) for name in COST}
    return Scrypt(salt=bytes.fromhex(fields["salt"]), length=32, **cost).derive(passphrase.encode())
