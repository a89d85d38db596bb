"""Connectors of a project as endpoints of its hook, what they read of a body, and dead letters:
deliveries that could not be understood.

Proofs that a delivery is from the tool are signatures and secrets, compared in constant time:

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
import contextlib
import hmac
import ipaddress
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from labelguard.answers import connector as connectors
from labelguard.answers.connector import Answer, Connector, Settings, read_credential
from labelguard.answers.inbox import Event, Letter
from labelguard.configuration.project_file import FILE
from labelguard.errors import ConnectorError
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject, Where
from labelguard.project.project import Project

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
                "no spaces: spaces separate secrets (openssl rand -base64 32)"
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

    def check_sender(self, address: str | None) -> None:
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
            matches = [_has_standard_signature(secret, headers, body) for secret in secrets]
            if not any(matches):
                raise Refused("the signature is wrong, or its time more than five minutes from now")
            return
        proof = headers.get(self.header)
        if not proof:
            raise Refused(f"the header {self.header} is missing")
        if self.name == "shared-secret":
            _require_matching_proof(proof, [secret.encode() for secret in secrets])
        elif self.name == "hmac-sha256":
            _require_matching_proof(
                proof, [b"sha256=" + _compute_hmac(one, body).hex().encode() for one in secrets]
            )
        else:
            stamp = headers.get(self.timestamp_header, "")
            _check_timestamp(stamp, self.timestamp_header)
            signed = stamp.encode("latin-1") + body
            _require_matching_proof(
                proof, [base64.b64encode(_compute_hmac(one, signed)) for one in secrets]
            )


def _has_standard_signature(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether the library of https://www.standardwebhooks.com finds the body signed."""
    try:
        Webhook(secret).verify(body, dict(headers), json_parse=False)
    except (WebhookVerificationError, ValueError):  # bytes that are no text, a broken signature
        return False
    return True


def _compute_hmac(secret: str, data: bytes) -> bytes:
    return hmac.digest(secret.encode(), data, "sha256")


def _require_matching_proof(text: str, proofs: Sequence[bytes]) -> None:
    """Compare with all of them, so that time does not tell which one matched."""
    data = text.encode("latin-1", errors="replace")
    matches = [hmac.compare_digest(data, proof) for proof in proofs]
    if not any(matches):
        raise Refused("the signature or secret is wrong")


def _check_timestamp(stamp: str, header: str) -> None:
    # No tool signs more digits, and int() takes long for very many.
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise Refused(f"the header {header} is not a time in seconds")
    if abs(int(stamp) - time.time()) > TOLERANCE:
        raise Refused(f"the header {header} is more than {TOLERANCE // 60} minutes from now")


SECRET = "hook_secret"


@dataclass(frozen=True)
class Endpoint:
    """A connector that is served. Its repr shows no secret."""

    name: str
    connector: Connector = field(repr=False)
    scheme: Scheme
    secrets: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Endpoints:
    """The connectors of a project by name, and why others are not served."""

    served: Mapping[str, Endpoint]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, project: Project) -> Endpoints:
        """Read them from labelguard.toml and the secrets that there are.

        Raises `ConnectorError` for settings that cannot be, and where nothing would be served.
        """
        served: dict[str, Endpoint] = {}
        left_out: dict[str, str] = {}
        for name, settings in connectors.read_all_settings(project.connectors).items():
            try:
                secrets = tuple(read_credential(name, SECRET).split())
            except ConnectorError as error:
                left_out[name] = str(error)
                continue
            scheme = Scheme.of(settings)
            scheme.check_secrets(name, secrets)
            served[name] = Endpoint(name, connectors.open_connector(settings), scheme, secrets)
        if not served:
            why = "; ".join(left_out.values()) or "labelguard.toml has no [connectors.NAME]"
            raise ConnectorError(f"there is no connector to serve: {why}")
        return cls(served, left_out)


def parse_delivery(connector: Connector, body: bytes) -> Sequence[Answer]:
    """Return the answers in a body. Raises `ConnectorError`, which holds nothing of it."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        raise ConnectorError("the body is not JSON") from None
    try:
        answers = connector.parse_event(event)
    except ConnectorError:
        raise
    except Exception as error:
        # A body that a connector was not made for is a letter to keep, whatever it stumbles over.
        raise ConnectorError(f"the connector failed on it ({type(error).__name__})") from None
    for answer in answers:
        _check_storable(answer)
    return answers


def explain_ignored(connector: Connector, body: bytes) -> str:
    """Return why a delivery tells of no answer, where its connector knows; nothing of answers."""
    explain = getattr(connector, "explain_ignored", None)
    return str(explain(json.loads(body))) if explain else ""


def _check_storable(answer: Answer) -> None:
    """Raise `ConnectorError` unless it fits a segment: texts in Unicode, versions of 64 bits."""
    texts = (answer.record, answer.labeler, answer.body)
    if not all(isinstance(text, str) for text in texts) or not answer.record:
        raise ConnectorError("an answer in it has no id, or one that is no text")
    if type(answer.version) is not int or not -(1 << 63) <= answer.version < 1 << 63:
        raise ConnectorError("the time of an answer in it is not a number of microseconds")
    if answer.is_ahead:
        raise ConnectorError(connectors.AHEAD)
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        raise ConnectorError("a text in it holds half of a surrogate pair") from None


@dataclass(frozen=True)
class RetryResult:
    """The number of dead letters that were understood when read again, and those that were not."""

    # letters that are understood now, and in the inbox or about nothing to keep
    understood: int
    # letters that are not; they are kept
    left: Sequence[Letter]


def dead_letters(where: Where = None) -> list[Letter]:
    """Return a project's dead letters, oldest first."""
    with contextlib.closing(OpenProject.open(where).answers.open_inbox()) as inbox:
        return inbox.list_dead_letters()


@dataclass(frozen=True)
class Discarded:
    """Dead letters that were discarded."""

    # their numbers
    numbers: Sequence[int]


def discard(where: Where = None, numbers: Sequence[int] = ()) -> Discarded:
    """Forget dead letters. Raises `ConnectorError` for a number that there is no letter of."""
    with contextlib.closing(OpenProject.open(where).answers.open_inbox()) as inbox:
        _check_letters_exist(numbers, inbox.list_dead_letters())
        for number in numbers:
            inbox.delete_dead_letter(number)
    return Discarded(sorted(set(numbers)))


def _check_letters_exist(numbers: Sequence[int], letters: Sequence[Letter]) -> None:
    if unknown := set(numbers) - {letter.number for letter in letters}:
        raise ConnectorError(f"there is no dead letter {min(unknown)}")


def retry(where: Where = None, numbers: Sequence[int] = ()) -> RetryResult:
    """Let the connectors, as they are now, read dead letters again: those named, or all.

    Letters of a pull hold nothing: their tools are read anew, whole. Raises `ConnectorError` for a
    number that there is no letter of, and what reading a tool raises.
    """
    opened = OpenProject.open(where)
    settings = connectors.read_all_settings(opened.project.connectors)
    with contextlib.closing(opened.answers.open_inbox()) as inbox:
        letters = inbox.list_dead_letters()
        _check_letters_exist(numbers, letters)
        letters = [letter for letter in letters if not numbers or letter.number in numbers]
        for name in sorted({one.connector for one in letters if not one.bytes} & set(settings)):
            ingestion.reconcile(name, opened.project)
        still = {letter.number for letter in inbox.list_dead_letters()}
        names = {letter.connector for letter in letters} & set(settings)
        known = {name: connectors.open_connector(settings[name]) for name in names}
        left = list[Letter]()
        for letter in letters:
            if letter.connector not in known or not letter.bytes:
                left += [letter] if letter.number in still else []
                continue
            body = inbox.read_dead_letter(letter.number)
            try:
                answers = parse_delivery(known[letter.connector], body)
            except ConnectorError:
                left.append(letter)
                continue
            if answers:
                inbox.store_events([Event(letter.connector, tuple(answers))])
            inbox.delete_dead_letter(letter.number)
    return RetryResult(len(letters) - len(left), left)
