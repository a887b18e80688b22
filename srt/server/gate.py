"""What every request passes before its route: an id, the Host check, the key check, and a net for
faults.

Access is denied by default: a path that is not in PUBLIC_PATHS needs the key, whether or not a
route answers it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stolon.srt.server.errors import HTTPFailure, describe
from stolon.srt.server.metrics import Metrics

log = logging.getLogger("stolon.server")

PUBLIC_PATHS = frozenset({"/health", "/ready", "/live"})
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class KeyCheck:
    """Compares keys by their SHA-256 digests in constant time."""

    def __init__(self, api_key: str) -> None:
        self._digest = _digest(api_key)

    def allows(self, headers: Headers) -> bool:
        """Whether ``Authorization: Bearer`` or ``X-Api-Key`` holds the key."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", "")]
        if scheme.lower() == "bearer":
            given.append(token.strip())
        matches = [hmac.compare_digest(_digest(key), self._digest) for key in given]
        return any(matches)


class Gate:
    """The ASGI middleware around the whole application.

    `allowed_hosts` lists the names a Host header may have, without port; None allows any. On a
    loopback bind that keeps web pages out that had their own name resolve to 127.0.0.1.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        api_key: str | None,
        allowed_hosts: frozenset[str] | None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._key = KeyCheck(api_key) if api_key is not None else None
        self._hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        # A body that breaks HTTP and came along with the head is answered by the HTTP layer, which ends
        # the connection in this turn of the loop. An answer that needs no body would come on top.
        await asyncio.sleep(0)
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        try:
            self._check(scope, headers)
            await self._app(scope, receive, tagged)
        except Exception as error:
            if status:
                log.exception("request %s failed after its answer began", request_id)
            else:
                if not isinstance(error, HTTPFailure):
                    log.error("request %s", request_id)
                await describe(error).response()(scope, receive, tagged)
        finally:
            self._count(scope, status)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if self._hosts is not None and _host(headers) not in self._hosts:
            raise HTTPFailure(403, "host_not_allowed", "The Host header names another server.")
        if scope["path"] in PUBLIC_PATHS or self._key is None:
            return
        if not self._key.allows(headers):
            raise HTTPFailure(
                401,
                "invalid_api_key",
                "A valid API key is needed.",
                headers={"www-authenticate": "Bearer"},
            )

    def _count(self, scope: Scope, status: int) -> None:
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.http.labels(method, route, str(status or 499)).inc()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def _host(headers: Headers) -> str:
    """The Host header without its port, in lower case."""
    host = headers.get("host", "").lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
