"""The hook's HTTP interface: `POST /hooks/{connector}`, health, metrics, and a page that says so.

A delivery passes verification, then its connector, then the disk; only then is it answered with
200. Until it is verified, nothing of it is parsed or stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response

import labelguard
from labelguard.errors import ConnectorError
from labelguard.ingest.inbox import Event, Inbox
from labelguard_connectors.hook import logs
from labelguard_connectors.hook.committing import Committer
from labelguard_connectors.hook.hearing import heard
from labelguard_connectors.hook.limits import Bodies, Limits, TooLarge, TooMany, TooSlow
from labelguard_connectors.hook.metrics import CONTENT_TYPE, Metrics
from labelguard_connectors.hook.serving import Served
from labelguard_connectors.hook.verification import Refused

_RETRY_AFTER = {"Retry-After": "10"}
_CLOSE = {"Connection": "close"}
_STATUSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "On disk in the inbox, or nothing to keep."},
    401: {"description": "The signature, the secret, the time or the address is wrong."},
    404: {"description": "No connector of this name is served."},
    408: {"description": "The body came too slowly."},
    413: {"description": "The body is too large."},
    422: {"description": "Not understood; kept among the dead letters."},
    503: {"description": "Nothing was kept; to be sent again after Retry-After seconds."},
}
_PROBE_SECONDS = 5.0


class Answered(Exception):
    """What a delivery is answered with, other than 200."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status, self.why, self.headers = status, why, headers


class Hook:
    """Takes deliveries for the connectors that are served, into one inbox."""

    def __init__(self, served: Mapping[str, Served], inbox: Inbox, limits: Limits) -> None:
        self._served, self._inbox, self._limits = served, inbox, limits
        self.metrics = Metrics()
        self.committer = Committer(inbox, self.metrics)
        self._bodies = Bodies(limits)
        self._log = logs.logger()
        self._probed = (-_PROBE_SECONDS, False)
        self._probing = asyncio.Lock()

    async def deliver(self, name: str, request: Request) -> Response:
        """Answer one delivery."""
        began = time.perf_counter()
        known = name if name in self._served else "unknown"
        try:
            said = await self._take(name, request)
            status, response = 200, JSONResponse({"status": said})
        except Answered as answered:
            status = answered.status
            response = JSONResponse({"error": answered.why}, status, answered.headers)
            self._log.warning("refused", connector=known, status=status, why=answered.why)
        self.metrics.deliveries.labels(known, str(status)).inc()
        self.metrics.seconds.observe(time.perf_counter() - began)
        return response

    async def _take(self, name: str, request: Request) -> str:
        served = self._served.get(name)
        if served is None:
            raise Answered(404, "no connector of this name is served here", _CLOSE)
        try:
            served.scheme.admit(request.client.host if request.client else None)
            body = await self._body(request)
            delivery = served.scheme.verify(served.secrets, request.headers, body)
        except Refused as error:
            raise Answered(401, str(error), _CLOSE) from None
        try:
            answers = heard(served.connector, body)
        except ConnectorError as error:
            await self._written(self.committer.bury(name, body, str(error)))
            raise Answered(422, f"kept among the dead letters: {error}") from None
        if not answers:
            return "ignored"
        event = Event(delivery, name, tuple(answers))
        await self._written(self.committer.store(event, len(body)))
        return "stored"

    async def _body(self, request: Request) -> bytes:
        declared = request.headers.get("content-length")
        try:
            return await self._bodies.read(request.stream(), declared)
        except TooLarge:
            most = self._limits.body_bytes
            raise Answered(413, f"the body has more than {most:,} bytes", _CLOSE) from None
        except TooSlow:
            raise Answered(408, "the body came too slowly", _CLOSE) from None
        except TooMany:
            raise _again("too many bodies are being read") from None
        except ClientDisconnect:
            raise Answered(408, "the body ended too early", _CLOSE) from None

    async def _written(self, work: Any) -> None:
        """Wait until it is on disk."""
        try:
            async with asyncio.timeout(self._limits.commit_seconds):
                await work
        except TimeoutError:
            raise _again("the inbox is busy") from None
        except ConnectorError as error:
            self._log.error("not stored", why=str(error))
            raise _again("the inbox cannot be written now") from None

    async def ready(self) -> bool:
        """Whether deliveries can be stored, as far as was known at most five seconds ago."""
        async with self._probing:
            at, found = self._probed
            if time.monotonic() - at >= _PROBE_SECONDS:
                found = self.committer.alive and await asyncio.to_thread(self._probe)
                self._probed = (time.monotonic(), found)
        return found

    def _probe(self) -> bool:
        try:
            self.metrics.waiting.set(self._inbox.waiting())
        except ConnectorError as error:
            self._log.error("not ready", why=str(error))
            return False
        return True


def _again(why: str) -> Answered:
    return Answered(503, why, {**_RETRY_AFTER, **_CLOSE})


def application(hook: Hook) -> FastAPI:
    """The ASGI application. Its inbox stays open when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        hook.committer.start()
        try:
            yield
        finally:
            await hook.committer.stop()

    app = FastAPI(
        title="labelguard hook",
        summary="Receives what annotation tools tell of answers.",
        version=labelguard.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPException, _refusal)

    @app.post("/hooks/{connector}", responses=_STATUSES, summary="Deliver one event")
    async def deliver(connector: str, request: Request) -> Response:
        return await hook.deliver(connector, request)

    @app.get("/healthz", summary="Whether the server answers")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", summary="Whether deliveries can be stored", responses={503: {}})
    async def readyz() -> Response:
        if await hook.ready():
            return JSONResponse({"status": "ready"})
        return JSONResponse({"error": "the inbox cannot be used now"}, 503, _RETRY_AFTER)

    @app.get("/metrics", summary="Numbers for Prometheus")
    async def metrics() -> Response:
        await hook.ready()
        return Response(hook.metrics.page(), media_type=CONTENT_TYPE)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        policy = {"Content-Security-Policy": "default-src 'none'"}
        return HTMLResponse(_page(app.openapi()), headers=policy)

    return app


async def _refusal(_: Request, error: Exception) -> Response:
    """Of paths and methods that there are none of: nothing of what was asked is repeated."""
    assert isinstance(error, HTTPException)
    said = "no such page" if error.status_code == 404 else "not allowed here"
    return JSONResponse({"error": said}, error.status_code, error.headers)


def _page(schema: Mapping[str, Any]) -> str:
    """The OpenAPI description as a page that needs no script, and nothing from elsewhere."""
    parts = [f"<h1>{html.escape(schema['info']['title'])}</h1>"]
    parts.append('<p>As a file: <a href="/openapi.json">openapi.json</a></p>')
    for path, methods in schema["paths"].items():
        for method, told in methods.items():
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2>")
            parts.append(f"<p>{html.escape(told['summary'])}.</p><ul>")
            parts += [
                f"<li>{status}: {html.escape(one.get('description', ''))}</li>"
                for status, one in told["responses"].items()
            ]
            parts.append("</ul>")
    return f"<!doctype html><title>labelguard hook</title>{''.join(parts)}"
