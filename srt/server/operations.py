"""Models, health, metrics, and the routes of whoever runs the server."""

from __future__ import annotations

import importlib.metadata

import anyio.to_thread
import msgspec
from fastapi import FastAPI
from starlette.responses import Response

from stolon.errors import EngineClosed
from stolon.srt.server.context import ServerContext
from stolon.srt.server.errors import HTTPFailure
from stolon.srt.server.metrics import CONTENT_TYPE

_PROBE_WAIT = 1.0  # a slow answer of a busy engine must not hold up a probe


def add_operation_routes(app: FastAPI, server: ServerContext) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [_model(server)]})

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> Response:
        server.check_model(model_id)
        return _json(_model(server))

    @app.get("/health")
    async def health() -> Response:
        """The event loop turns."""
        return _json({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """New requests are accepted and there is an engine to take them."""
        if server.dispatcher.draining:
            raise _unavailable("draining", "The server is shutting down.", retry=False)
        await server.monitor.observe(_PROBE_WAIT)
        if server.monitor.closed:
            raise _unavailable("engine_closed", "The engine is not available.", retry=True)
        return _json({"status": "ok"})

    @app.get("/live")
    async def live() -> Response:
        """The engine advances, or has nothing to do."""
        await server.monitor.observe(_PROBE_WAIT)
        if not server.monitor.live:
            raise _unavailable("engine_stalled", "The engine does not advance.", retry=True)
        return _json({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        stats = await server.monitor.observe(_PROBE_WAIT)
        return Response(server.metrics.render(stats), media_type=CONTENT_TYPE)

    @app.post("/flush_cache")
    async def flush_cache() -> Response:
        if server.dispatcher.draining:
            raise EngineClosed("the server is shutting down")
        await anyio.to_thread.run_sync(server.client.flush_cache)
        return _json({"success": True})

    @app.get("/server_info")
    async def server_info() -> Response:
        """What is served and under which limits. No paths, no keys."""
        stats = await server.monitor.observe(_PROBE_WAIT)
        info = msgspec.structs.asdict(server.client.info) | {"name": server.served_name}
        return _json(
            {
                "version": importlib.metadata.version("stolon"),
                "model": info,
                "limits": server.limits,
                "key_required": server.key_required,
                "draining": server.dispatcher.draining,
                "queued": server.dispatcher.queued,
                "in_flight": server.dispatcher.in_flight,
                "engine": stats,
            }
        )


def _model(server: ServerContext) -> dict[str, object]:
    return {
        "id": server.served_name,
        "object": "model",
        "created": server.created,
        "owned_by": "stolon",
        "max_model_len": server.client.info.context_length,
        "root": server.served_name,
        "parent": None,
    }


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def _unavailable(code: str, message: str, *, retry: bool) -> HTTPFailure:
    return HTTPFailure(503, code, message, headers={"x-should-retry": "true" if retry else "false"})
