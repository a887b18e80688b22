"""The FastAPI application: any EngineClient behind the routes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from stolon.errors import StolonError
from stolon.srt.client import EngineClient
from stolon.srt.server.blocks import add_block_routes
from stolon.srt.server.chat import add_chat_routes
from stolon.srt.server.completions import add_completion_routes
from stolon.srt.server.context import ServerContext
from stolon.srt.server.errors import HTTPFailure, describe
from stolon.srt.server.gate import Gate
from stolon.srt.server.limits import ServerLimits
from stolon.srt.server.native import add_native_routes
from stolon.srt.server.operations import add_operation_routes
from stolon.srt.server.text_routes import add_text_routes

_STATUS_ERRORS = {
    404: ("not_found", "There is no such route."),
    405: ("method_not_allowed", "The route does not take this method."),
}


def create_app(
    client: EngineClient,
    *,
    served_name: str,
    api_key: str | None = None,
    limits: ServerLimits | None = None,
    allowed_hosts: Iterable[str] | None = None,
) -> FastAPI:
    """The application for one engine. ``app.state.server`` is its ServerContext.

    With `api_key`, every path but /health, /ready and /live needs it. `allowed_hosts` limits the
    Host header. The application does not close `client`.
    """
    server = ServerContext.build(
        client,
        served_name=served_name,
        limits=limits or ServerLimits(),
        key_required=api_key is not None,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(server.monitor.watch())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    app = FastAPI(
        title="Stolon", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan
    )
    app.state.server = server
    for add_routes in (
        add_chat_routes,
        add_completion_routes,
        add_native_routes,
        add_block_routes,
        add_text_routes,
        add_operation_routes,
    ):
        add_routes(app, server)

    async def explain(request: HTTPRequest, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            code, message = _STATUS_ERRORS.get(
                error.status_code, ("http_error", "The request can't be served.")
            )
            error = HTTPFailure(error.status_code, code, message, headers=error.headers)
        return describe(error, retry_after=server.limits.retry_after).response()

    for kind in (HTTPException, HTTPFailure, StolonError):
        app.add_exception_handler(kind, explain)
    app.add_middleware(
        Gate,
        metrics=server.metrics,
        api_key=api_key,
        allowed_hosts=None if allowed_hosts is None else frozenset(allowed_hosts),
    )
    return app
