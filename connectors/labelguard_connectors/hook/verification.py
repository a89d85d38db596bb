"""Proofs that a delivery is from the tool: signatures and secrets, compared in constant time.

| scheme | what is compared |
|---|---|
| standard-webhooks | Standard Webhooks: HMAC of id, timestamp and body (Argilla) |
| hmac-sha256 | `sha256=` and the hex HMAC-SHA256 of the body |
| hmac-timestamp | the base64 HMAC-SHA256 of timestamp and body (Prolific) |
| shared-secret | a header that holds the secret itself (Label Studio, which signs nothing) |

Several secrets may hold at once, while one replaces another. A timestamp must be within five
minutes of now. No id of a delivery and no hash of its body is used: what it reports is known again
by the answers' ids and times (`labelguard.answers.inbox`), and never by what is said in them.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from labelguard.answers.connector import Settings
from labelguard.configuration.project_file import FILE
from labelguard.errors import ConnectorError

# Seconds by which the clock of a tool may differ from ours.
TOLERANCE = 300

# Characters of a secret. A phrase would else be as many secrets as it has words.
_SHORTEST = 16

_DEFAULTS = {"argilla": "standard-webhooks", "label-studio": "shared-secret"}
_HEADERS = {
    "standard-webhooks": "",
    "hmac-sha256": "x-hub-signature-256",
    "hmac-timestamp": "x-prolific-request-signature",
    "shared-secret": "x-labelguard-secret",
}
_TIMESTAMP_HEADER = "x-prolific-request-timestamp"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Refused(Exception):
    """A delivery is not, or not provably, from the tool. The message says why, never by what."""


@dataclass(frozen=True)
class Scheme:
    """A scheme by which deliveries of one connector are verified; holds no secret.

    `header` is where the signature or the secret stands, in lower case, `timestamp_header` where
    the time stands that was signed. `addresses` are those that may deliver; all, where it is empty.
    """

    name: str
    header: str
    timestamp_header: str
    addresses: tuple[Network, ...]

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """From `[connectors.NAME.hook]`. Raises `ConnectorError` for what it cannot be."""
        table, where = settings.hook, f"{FILE}: connectors.{settings.name}.hook"
        name = table.get("scheme", _DEFAULTS.get(settings.kind))
        if name is None:
            raise ConnectorError(f"{where}.scheme: expected one of {', '.join(_HEADERS)}")
        if name == "standard-webhooks" and ("header" in table or "timestamp_header" in table):
            raise ConnectorError(f"{where}: the headers of standard-webhooks have fixed names")
        header = table.get("header", _HEADERS[name]).lower()
        timestamp = table.get("timestamp_header", _TIMESTAMP_HEADER).lower()
        addresses = tuple(ipaddress.ip_network(one) for one in table.get("addresses", ()))
        return cls(name, header, timestamp, addresses)

    def check_secrets(self, connector: str, secrets: Sequence[str]) -> None:
        """Raise `ConnectorError` where a secret cannot be one of this scheme, or can be guessed."""
        if any(len(secret) < _SHORTEST for secret in secrets):
            raise ConnectorError(
                f"connector {connector}: hook_secret must have at least {_SHORTEST} characters and "
                "no blanks in it, for those part several (openssl rand -base64 32)"
            )
        if self.name != "standard-webhooks":
            return
        for secret in secrets:
            text = secret.removeprefix("whsec_")
            try:
                key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
            except ValueError:
                key = b""
            if not key:
                raise ConnectorError(
                    f"connector {connector}: hook_secret must be base64, as the tool shows it "
                    "(with or without whsec_ before it)"
                ) from None

    def check_address(self, address: str | None) -> None:
        """Raise `Refused` unless deliveries may come from that address."""
        if not self.addresses:
            return
        try:
            client = ipaddress.ip_address(address or "")
        except ValueError:
            raise Refused("its address is unknown") from None
        mapped = getattr(client, "ipv4_mapped", None)
        if not any((mapped or client) in network for network in self.addresses):
            raise Refused("its address is none of those that may deliver")

    def verify(self, secrets: Sequence[str], headers: Mapping[str, str], body: bytes) -> None:
        """Raise `Refused` unless a secret proves the body; `headers` have names in lower case."""
        if self.name == "standard-webhooks":
            matches = [_is_standard(secret, headers, body) for secret in secrets]
            if not any(matches):
                raise Refused("the signature is wrong, or its time more than five minutes from now")
            return
        proof = headers.get(self.header)
        if not proof:
            raise Refused(f"the header {self.header} is missing")
        if self.name == "shared-secret":
            _compare(proof, [secret.encode() for secret in secrets])
        elif self.name == "hmac-sha256":
            _compare(proof, [b"sha256=" + _hmac(one, body).hex().encode() for one in secrets])
        else:
            stamp = headers.get(self.timestamp_header, "")
            _check_time(stamp, self.timestamp_header)
            signed = stamp.encode("latin-1") + body
            _compare(proof, [base64.b64encode(_hmac(one, signed)) for one in secrets])


def _is_standard(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether the library of https://www.standardwebhooks.com finds the body signed."""
    try:
        Webhook(secret).verify(body, dict(headers), json_parse=False)
    except (WebhookVerificationError, ValueError):  # bytes that are no text, a broken signature
        return False
    return True


def _hmac(secret: str, data: bytes) -> bytes:
    return hmac.digest(secret.encode(), data, "sha256")


def _compare(text: str, proofs: Sequence[bytes]) -> None:
    """Compare with all of them, so that time does not tell which one matched."""
    data = text.encode("latin-1", errors="replace")
    matches = [hmac.compare_digest(data, proof) for proof in proofs]
    if not any(matches):
        raise Refused("the signature or secret is wrong")


def _check_time(stamp: str, header: str) -> None:
    # No tool signs more digits, and int() takes long for very many.
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise Refused(f"the header {header} is not a time in seconds")
    if abs(int(stamp) - time.time()) > TOLERANCE:
        raise Refused(f"the header {header} is more than {TOLERANCE // 60} minutes from now")
