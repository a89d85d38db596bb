"""The hook's HTTP interface: deliveries, health, metrics, and a description of them (OpenAPI)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

import labelguard
from labelguard_connectors.hook.delivery import PATH, RETRY_SECONDS, STATUSES, Hook
from labelguard_connectors.hook.metrics import CONTENT_TYPE

_DELIVERY = {
    "summary": "Deliver one event",
    "parameters": [
        {"name": "connector", "in": "path", "required": True, "schema": {"type": "string"}}
    ],
    "requestBody": {
        "description": "An event, as the tool sends it.",
        "required": True,
        "content": {"application/json": {"schema": {}}},
    },
    "responses": {str(status): {"description": text} for status, text in STATUSES.items()},
}


def application(hook: Hook) -> ASGIApp:
    """Return the ASGI application. The hook's inbox stays open when it ends."""
    pages = _pages(hook)

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(PATH):
            await hook(scope, receive, send)
        else:
            await pages(scope, receive, send)

    return front


def _pages(hook: Hook) -> FastAPI:
    """Return an application with all pages but deliveries."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        hook.writer.start()
        try:
            yield
        finally:
            await hook.writer.stop()

    app = FastAPI(
        title="labelguard hook",
        summary="Receives answers from annotation tools.",
        version=labelguard.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPException, _refusal)

    @app.get("/healthz", summary="Whether the server answers")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", summary="Whether deliveries can be stored", responses={503: {}})
    async def readyz() -> Response:
        if await hook.ready():
            return JSONResponse({"status": "ready"})
        why = {"error": "the inbox cannot be used now"}
        return JSONResponse(why, 503, {"retry-after": RETRY_SECONDS})

    @app.get("/status", summary="Whether releases succeed, and how many events wait")
    async def status() -> Response:
        return JSONResponse(await hook.status())

    @app.get("/metrics", summary="Numbers for Prometheus")
    async def metrics() -> Response:
        await hook.count()
        return Response(hook.metrics.page(), media_type=CONTENT_TYPE)

    schema = app.openapi()
    schema["paths"] = {PATH + "{connector}": {"post": _DELIVERY}, **schema["paths"]}
    return app


async def _refusal(_: Request, error: Exception) -> Response:
    """Of paths and methods that there are none of: nothing of what was asked is repeated."""
    assert isinstance(error, HTTPException)
    why = "no such page" if error.status_code == 404 else "not allowed here"
    return JSONResponse({"error": why}, error.status_code, error.headers)
