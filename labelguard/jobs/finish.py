"""The end of a run: its entry in the history, its model's entry in the registry, notifications.

A notification is a webhook, signed by the Standard Webhooks convention. It says what the history
says, less error messages: no labeler, no path, no label. It is written down before it is sent, and
stays until it is delivered: a receiver that is down fails no run, and gets the message under the
same id when the job runs next.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from labelguard import clock, extras
from labelguard.answers.connector import read_secret
from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.jobs.gates import EVALUATION
from labelguard.jobs.settings import Job, NotifySettings
from labelguard.jobs.state import Facts, JobState, RunInProgress
from labelguard.jobs.steps import Step
from labelguard.project import attempts
from labelguard.project.attempts import JobRun
from labelguard.project.project import Project
from labelguard.release.mechanisms import open_mechanism
from labelguard.release.writer import read_card
from labelguard.report import overview

STEPS = ("check", "pull", "release", "train", "evaluate", "judge", "promote")
_RAW_LABEL_STEPS = ("pull", "release", "evaluate")

_QUEUE = "notices.json"
_OUTCOMES = ("promoted", "rejected", "failed")
_TIMEOUT, _MAX_WAITING = 10.0, 100
_MIN_KEY_BYTES = 16
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MESSAGE_FIELDS = (
    *("job", "run", "outcome", "why", "budget", "release", "mechanism", "new_labels", "charged"),
    *("charged_by", "model", "judgement", "started_at", "ended_at"),
)


def make_history_entry(
    job: Job,
    run: RunInProgress,
    outcome: str,
    why: str,
    *,
    training_key: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> JobRun:
    """Return the entry of a run that ends, from the results of its steps."""
    results: dict[str, Facts] = {name: run.steps.get(name, {}) for name in STEPS}
    release, evaluation = results["release"], results["evaluate"]
    learned_from = release.get("learn_from")
    is_exhausted = release.get("exhausted") or evaluation.get("exhausted")
    charged_by: dict[str, int] = {}
    for facts, name in ((release, job.settings.release.mechanism), (evaluation, EVALUATION)):
        if charged := facts.get("charged", 0):
            event = str(open_mechanism(name).priced)
            charged_by[event] = charged_by.get(event, 0) + charged
    return JobRun(
        job=job.name,
        run=run.number,
        started_at=run.facts["started_at"],
        ended_at=clock.now(),
        outcome=outcome,
        budget="exhausted" if is_exhausted else "left",
        why=why,
        release=learned_from,
        mechanism=job.settings.release.mechanism if learned_from else None,
        new_labels=release.get("new_labels", 0),
        charged=sum(charged_by.values()),
        charged_by=charged_by,
        model=results["promote"].get("model"),
        judgement=results["judge"] or None,
        curve=results["train"].get("curve", []),
        lesson=training_key,
        evaluation=evaluation.get("release"),
        settings=config or {},
    )


def describe_training(job: Job, step: Step) -> dict[str, Any]:
    """Return by what a job trains and judges, as JSON."""
    gate = job.settings.gate.model_dump(mode="json")
    return {"step": step.name, "options": dict(step.identity()), "gate": gate}


def compute_training_key(job: Job, step: Step, release: str) -> str:
    """Return a digest of all that decides what is learned from a release, and how it is judged.

    Equal keys make no new model, and are not judged twice.
    """
    content = {"release": release, **describe_training(job, step)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def make_registry_entry(home: Project, run: RunInProgress, config: Mapping[str, Any]) -> Facts:
    """Return the registry's facts of a model: whose guarantee it has, and why it was promoted."""
    release = run.steps["release"]["learn_from"]
    card = read_card(home.releases / release)
    return {
        "run": run.number,
        "release": release,
        "mechanism": card["mechanism"],
        **{name: card["privacy"][name] for name in ("epsilon", "delta", "unit", "adjacency")},
        **config,
        "facts": run.steps["train"]["facts"],
        "judgement": run.steps["judge"],
    }


def record_and_notify(job: Job, home: Project, run: RunInProgress) -> list[str]:
    """Add a run that has ended to the history and notify; return notes for the caller.

    Only then is it not in progress any more.
    """
    assert run.end_entry
    entry = JobRun(**run.end_entry)
    attempts.append_job_run(run.state.history, entry)
    notes = notify(job.settings.notify, home, run.state, entry)
    run.state.remove_run_in_progress()
    return notes


def end_failed_run(job: Job, home: Project, run: RunInProgress, why: str) -> None:
    """End a run that failed; its release stays, and the next run learns from it."""
    run.record_end(make_history_entry(job, run, "failed", why))
    with contextlib.suppress(LabelguardError):  # the first error has to be raised
        record_and_notify(job, home, run)


def describe_failure(run: RunInProgress, error: Exception) -> str:
    """Return which step failed, and the kind of an error that raw labels cannot raise.

    Its message is for the terminal and the log of errors alone.
    """
    step = _failed_step(run)
    return f"{step} failed" + (f": {type(error).__name__}" * (step not in _RAW_LABEL_STEPS))


def log_failure(run: RunInProgress, error: Exception) -> Exception:
    """Log why a step failed; return the error that is shown, with a note where the log is.

    What reading labels can say stands in the log alone: what a job prints may be collected.
    """
    step, shown = _failed_step(run), error
    reads_labels = step in _RAW_LABEL_STEPS
    if reads_labels and isinstance(error, InvalidLabels):
        shown = type(error)(f"{step} failed: {attempts.describe_publicly(error)}")
    trace = _trace_without_labels(error) if reads_labels else traceback.format_exception(error)
    with contextlib.suppress(OSError):  # the first error has to be raised
        path = run.state.append_to_log(f"run {run.number}, {step} failed\n{''.join(trace)}")
        shown.add_note(f"traceback: {path}")
    return shown


def _failed_step(run: RunInProgress) -> str:
    return next((name for name in STEPS if name not in run.steps), STEPS[-1])


def _trace_without_labels(error: BaseException) -> Iterator[str]:
    """Yield the trace of an error that raw labels may have raised: its places, and messages of our
    own errors, which hold no label. Other messages may hold one.
    """
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause:
        yield from _trace_without_labels(cause)
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__name__}: {error if isinstance(error, LabelguardError) else '…'}\n"


def check_notification_settings(settings: NotifySettings | None) -> None:
    """Raise `MissingExtra`, or `LabelguardError` for a URL or a secret that cannot work."""
    if settings is None:
        return
    extras.require_extra("jobs", "notify")
    url = urlsplit(settings.url)
    if url.scheme != "https" and not (url.scheme == "http" and url.hostname in _LOOPBACK):
        raise LabelguardError("notify.url: it must begin with https:// (http:// on this machine)")
    if not url.hostname or url.username or url.password:
        raise LabelguardError("notify.url: it must name a host, and no user or password")
    _make_signer(settings)


def notify(
    settings: NotifySettings | None, home: Project, state: JobState, run: JobRun
) -> list[str]:
    """Queue the messages of a run and deliver the queue; return notes for the caller."""
    if settings is None:
        return []
    queue = state.read_json(_QUEUE) or {"noted": 0, "below": [], "waiting": []}
    if queue["noted"] < run.run:
        usage = [use for use in overview.read_budget(home).allowances if use.allowed]
        # The share of each allowance that is left, over all labelers who gave labels; and the share
        # of them that has nothing left, which the former does not show.
        left = {use.event: round(use.left / use.allowed, 4) for use in usage}
        spent = {use.event: round(use.exhausted_labelers / use.labelers, 4) for use in usage}
        low, most = settings.budget_below, settings.exhausted_above
        below = sorted(name for name in left if left[name] < low or spent[name] > most)
        shares = {"budget_left": left, "exhausted": spent}
        crossed = sorted(set(below) - set(queue["below"]))
        waiting = [*queue["waiting"], *_compose_messages(run, shares, crossed)][-_MAX_WAITING:]
        queue = {"noted": run.run, "below": below, "waiting": waiting}
        state.write_json(_QUEUE, queue)
    waiting = list(queue["waiting"])
    while waiting:
        try:
            _deliver(settings, waiting[0])
        except LabelguardError as error:
            return [f"{error}; the next run tries again"]
        waiting.pop(0)
        state.write_json(_QUEUE, queue | {"waiting": waiting})
    return []


def _compose_messages(
    run: JobRun, shares: Mapping[str, Mapping[str, float]], crossed: list[str]
) -> Iterator[Facts]:
    """Yield what to notify of a run; `crossed` are events of whose allowance little is left now, or
    too many have nothing left.
    """
    bodies: dict[str, Facts] = {}
    if run.outcome in _OUTCOMES:
        bodies[f"run.{run.outcome}"] = {name: getattr(run, name) for name in _MESSAGE_FIELDS}
    if crossed:
        bodies["budget.low"] = {"job": run.job, "run": run.run, "below": crossed}
    for kind, data in bodies.items():
        name = f"{run.job} {run.run} {run.started_at} {kind}"
        data |= shares
        body = {"type": kind, "timestamp": run.ended_at, "data": data}
        yield {"id": f"msg_{hashlib.sha256(name.encode()).hexdigest()[:32]}", "body": body}


def _deliver(settings: NotifySettings, message: Facts) -> None:
    """Deliver one message. Raises `LabelguardError` if the receiver does not accept it."""
    extras.require_extra("jobs", "notify")
    import httpx

    body, now = json.dumps(message["body"], sort_keys=True), datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": message["id"],
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": _make_signer(settings).sign(message["id"], now, body),
    }
    # Proxies of the environment count, but not for http: what is in clear stays on this machine.
    # No cookie, no redirect, nothing of the answer is read.
    away = urlsplit(settings.url).scheme == "https"
    try:
        with (
            httpx.Client(timeout=_TIMEOUT, follow_redirects=False, trust_env=away) as client,
            client.stream("POST", settings.url, content=body, headers=headers) as response,
        ):
            response.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = type(error).__name__
        if isinstance(error, httpx.HTTPStatusError):
            why = f"HTTP {error.response.status_code}"
        raise LabelguardError(f"notification not delivered ({why})") from None


def _make_signer(settings: NotifySettings) -> Any:
    """Return what signs by the secret; raise `LabelguardError` for a missing or weak secret."""
    from standardwebhooks.webhooks import Webhook

    name = settings.secret_env
    if not (secret := read_secret(name, LabelguardError)):
        raise LabelguardError(
            f"notify: no secret; put it into {name}, or into a file named by {name}_FILE"
        )
    bare = secret.removeprefix("whsec_").rstrip("=")
    try:
        key = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except ValueError:
        key = b""
    if len(key) < _MIN_KEY_BYTES:
        raise LabelguardError(
            f"notify: the secret in {name} must be {_MIN_KEY_BYTES} bytes or more as base64, with "
            "or without whsec_ before it: openssl rand -base64 32"
        )
    return Webhook(key)
