"""The hook's HTTP interface: deliveries, health, metrics, and a description of them (OpenAPI)."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Mapping

from fastapi import Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

import labelguard
from labelguard_connectors.hook.delivery import PATH, RETRY_SECONDS, STATUSES, Hook
from labelguard_connectors.hook.metrics import CONTENT_TYPE, render_metrics

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


def application(hooks: Mapping[str, Hook], stray: Hook | None = None, token: str = "") -> ASGIApp:
    """Return the application of projects by name; a delivery goes to /hooks/PROJECT/CONNECTOR.

    The name "" is that of an only one, which takes /hooks/CONNECTOR. `stray`, which serves no
    connector, answers deliveries to no project. Who asks for /status or /metrics must give the
    `token`, if there is one. The hooks' inboxes stay open when it ends.
    """
    pages, any_hook = _make_page_application(hooks, stray, token), next(iter(hooks.values()))

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PATH):
            await pages(scope, receive, send)
            return
        if "" in hooks:
            await any_hook(scope, receive, send)
            return
        name, _, connector = scope["path"].removeprefix(PATH).partition("/")
        hook = hooks.get(name)
        # Of a project that there is none of: no connector has an empty name.
        scope["path"] = PATH + (connector if hook else "")
        await (hook or stray or any_hook)(scope, receive, send)

    return route


def _make_page_application(hooks: Mapping[str, Hook], stray: Hook | None, token: str) -> FastAPI:
    """Return an application with all pages but deliveries, of projects by name; "" is the only
    one.
    """
    only = "" in hooks

    async def require_token(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise HTTPException(401, headers={"www-authenticate": "Bearer"})

    guarded = [Depends(require_token)]

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for hook in hooks.values():
                hook.writer.start()
                stack.push_async_callback(hook.writer.stop)
            yield

    app = FastAPI(
        title="labelguard hook",
        summary="Receives answers from annotation tools.",
        version=labelguard.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPException, _respond_to_http_error)

    @app.get("/healthz", summary="Whether the server answers")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", summary="Whether deliveries can be stored", responses={503: {}})
    async def readyz() -> Response:
        if all(await asyncio.gather(*(hook.ready() for hook in hooks.values()))):
            return JSONResponse({"status": "ready"})
        why = {"error": "the inbox cannot be used now"}
        return JSONResponse(why, 503, {"retry-after": RETRY_SECONDS})

    about = "Whether releases succeed, how many events wait, and dead letters"

    @app.get("/status", summary=about, dependencies=guarded)
    async def status() -> Response:
        each = {name: await hook.status() for name, hook in hooks.items()}
        return JSONResponse(each[""] if only else each)

    @app.get("/metrics", summary="Numbers for Prometheus", dependencies=guarded)
    async def metrics() -> Response:
        await asyncio.gather(*(hook.refresh_counts() for hook in hooks.values()))
        return Response(
            render_metrics(
                {name: hook.metrics for name, hook in hooks.items()},
                stray.metrics if stray else None,
            ),
            media_type=CONTENT_TYPE,
        )

    schema = app.openapi()
    place = PATH + ("{connector}" if only else "{project}/{connector}")
    schema["paths"] = {place: {"post": _DELIVERY}, **schema["paths"]}
    return app


async def _respond_to_http_error(_: Request, error: Exception) -> Response:
    """Of paths and methods that there are none of: nothing of what was asked is repeated."""
    assert isinstance(error, HTTPException)
    why = "no such page" if error.status_code == 404 else "not allowed here"
    return JSONResponse({"error": why}, error.status_code, error.headers)
