"""Who is told how a run ended: a webhook, signed by the Standard Webhooks convention.

A message says what the history says, less whatever an error said: no labeler, no path, no label.
It is written down before it is sent, and stays until somebody took it: a receiver that is down
fails no run, and hears of it when the job runs next, under the same id.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.jobs.settings import Notify
from labelguard.jobs.state import Facts, State
from labelguard.project.project import Project
from labelguard.project.runs import JobRun
from labelguard.report import overview
from labelguard.storage import private_files

if TYPE_CHECKING:
    import httpx

_FILE = "notices.json"
_OUTCOMES = ("promoted", "kept", "failed")
_TRIES, _SECONDS, _MOST = 3, 10.0, 100
_LEAST_KEY = 16
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check(settings: Notify | None) -> None:
    """Raise `MissingExtra`, or `LabelguardError` for what nobody could be told by."""
    if settings is None:
        return
    extras.require("jobs", "notify")
    url = urlsplit(settings.url)
    if url.scheme != "https" and not (url.scheme == "http" and url.hostname in _LOOPBACK):
        raise LabelguardError("notify.url: it must begin with https:// (http:// on this machine)")
    if not url.hostname or url.username or url.password:
        raise LabelguardError("notify.url: it must name a host, and no user or password")
    _signer(settings)


def notify(settings: Notify | None, home: Project, state: State, run: JobRun) -> list[str]:
    """Note what is to be told of a run, and tell it, with all that nobody took so far.

    Returns what the caller should know.
    """
    if settings is None:
        return []
    held = state.read(_FILE) or {"noted": 0, "below": [], "waiting": []}
    if held["noted"] < run.run:
        left = _left(home)
        below = sorted(name for name, share in left.items() if share < settings.budget_below)
        crossed = sorted(set(below) - set(held["below"]))
        waiting = [*held["waiting"], *_messages(run, left, crossed)][-_MOST:]
        held = {"noted": run.run, "below": below, "waiting": waiting}
        state.write(_FILE, held)
    return _send(settings, state, held)


def _messages(run: JobRun, left: Mapping[str, float], crossed: list[str]) -> Iterator[Facts]:
    if run.outcome in _OUTCOMES:
        data = {name: getattr(run, name) for name in _TOLD} | {"budget_left": dict(left)}
        yield _message(run, f"run.{run.outcome}", data)
    if crossed:
        data = {"job": run.job, "run": run.run, "below": crossed, "budget_left": dict(left)}
        yield _message(run, "budget.low", data)


def _message(run: JobRun, kind: str, data: Facts) -> Facts:
    name = f"{run.job} {run.run} {run.started_at} {kind}"
    made = {"type": kind, "timestamp": run.ended_at, "data": data}
    return {"id": f"msg_{hashlib.sha256(name.encode()).hexdigest()[:32]}", "body": made}


_TOLD = (
    *("job", "run", "outcome", "why", "budget", "release", "mechanism", "new_labels", "charged"),
    *("charged_by", "model", "judgement", "started_at", "ended_at"),
)


def _left(home: Project) -> dict[str, float]:
    """The share of each allowance of the policy in force that is left, over all labelers met."""
    usage = overview.budget(home).allowances
    return {one.event: round(one.left / one.allowed, 4) for one in usage if one.allowed}


def _send(settings: Notify, state: State, held: Facts) -> list[str]:
    waiting, said = list(held["waiting"]), []
    while waiting:
        try:
            _post(settings, waiting[0])
        except LabelguardError as error:
            said.append(f"{error}; the next run tries again")
            break
        waiting.pop(0)
        state.write(_FILE, held | {"waiting": waiting})
    return said


def _post(settings: Notify, message: Facts) -> None:
    """Deliver one message. Raises `LabelguardError` if nobody took it."""
    extras.require("jobs", "notify")
    import httpx
    import tenacity

    try:
        signer = _signer(settings)
        body = json.dumps(message["body"], sort_keys=True)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_exponential(multiplier=0.2, max=5),
            reraise=True,
        )
        # Proxies of the environment count, but not for http: what is in clear stays on this
        # machine. No cookie, no redirect, nothing of the answer is read.
        away = urlsplit(settings.url).scheme == "https"
        with httpx.Client(timeout=_SECONDS, follow_redirects=False, trust_env=away) as client:
            retrying(lambda: _once(client, settings.url, signer, message["id"], body))
    except httpx.HTTPStatusError as error:
        why = f"HTTP {error.response.status_code}"
        raise LabelguardError(f"notification not delivered ({why})") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = type(error).__name__
        raise LabelguardError(f"notification not delivered ({why})") from None


def _may_pass(error: BaseException) -> bool:
    """Return whether the receiver could not be reached, or said that it cannot just now."""
    import httpx

    if not isinstance(error, httpx.HTTPStatusError):
        return isinstance(error, httpx.TransportError)
    status = error.response.status_code
    return status in (408, 425, 429) or status >= 500


def _once(client: httpx.Client, url: str, signer: Any, name: str, body: str) -> None:
    now = datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signer.sign(name, now, body),
    }
    with client.stream("POST", url, content=body, headers=headers) as answer:
        answer.raise_for_status()


def _signer(settings: Notify) -> Any:
    """Signs by the secret. Raises `LabelguardError` if there is none, or it is no secret."""
    from standardwebhooks.webhooks import Webhook

    name = settings.secret_env
    secret = os.environ.get(name, "").strip()
    if not secret and (file := os.environ.get(f"{name}_FILE")):
        data = private_files.read_mounted(Path(file), LabelguardError)
        secret = data.decode(errors="replace").strip()
    if not secret:
        raise LabelguardError(
            f"notify: no secret; put it into {name}, or into a file named by {name}_FILE"
        )
    bare = secret.removeprefix("whsec_").rstrip("=")
    try:
        key = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except ValueError:
        key = b""
    if len(key) < _LEAST_KEY:
        raise LabelguardError(
            f"notify: the secret in {name} must be {_LEAST_KEY} bytes or more as base64, with or "
            "without whsec_ before it: openssl rand -base64 32"
        )
    return Webhook(key)
