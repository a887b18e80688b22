"""Every error leaves the server as ``{"error": {message, type, param, code}}``.

Messages of 4xx answers say what is wrong with the request. Messages of 5xx answers are fixed
sentences: the text of an exception, which may hold paths or addresses, goes to the log under the
request id and nowhere else.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from stolon.errors import (
    Aborted,
    EngineClosed,
    EngineError,
    GrammarError,
    InvalidRequest,
    Overloaded,
    StolonError,
)

log = logging.getLogger("stolon.server")

MAX_MESSAGE = 400

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_FIELD = re.compile(r"\b(max_tokens|min_tokens|seed)\b")
"""Names of engine's fields that messages hold, and that some bodies name otherwise."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The object under ``error``; `type` uses OpenAI's names, `code` is for machines."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class HTTPFailure(Exception):
    """An error of the HTTP layer itself (route, size, key, host); the rest of the product raises
    StolonError.
    """

    def __init__(
        self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """How an exception is told to a client."""

    status: int
    body: ErrorBody
    headers: dict[str, str] = {}

    def json(self) -> bytes:
        return msgspec.json.encode({"error": self.body})

    def response(self) -> Response:
        return Response(
            self.json(),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


def printable(text: str, limit: int = MAX_MESSAGE) -> str:
    """Text for a message: control characters become blanks, the length is capped."""
    text = _UNPRINTABLE.sub(" ", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def failure(
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Failure:
    """Build a Failure; the type follows from the status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return Failure(
        status=status,
        body=ErrorBody(message=printable(message), type=kind, param=param, code=code),
        headers=dict(headers or {}),
    )


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """The error with the body's names in the place of the engine's.

    `names` has the body's field for each engine's one that differs; ``grammar`` is the constraint.
    """
    key = "grammar" if error.param is None and isinstance(error, GrammarError) else error.param
    error.param = names.get(key or "", error.param)
    error.message = _FIELD.sub(
        lambda field: names.get(field[0], field[0]).rpartition(".")[2], error.message
    )
    return error


def describe(error: Exception, *, retry_after: float = 1.0) -> Failure:
    """Map an exception to its answer. Unknown ones are logged and become a generic 500."""
    match error:
        case HTTPFailure():
            return failure(error.status, error.code, error.message, headers=error.headers)
        case InvalidRequest():
            return failure(error.status, error.code, str(error), param=error.param)
        case Overloaded():
            return failure(
                429,
                error.code,
                "The server is busy: its queue is full. Retry later.",
                headers={
                    "retry-after-ms": str(round(retry_after * 1000)),
                    "retry-after": str(max(1, round(retry_after))),
                    "x-should-retry": "true",
                },
            )
        case EngineClosed():
            message = "The engine is not available."
        case Aborted():
            message = "The request was aborted before it finished."
        case EngineError() if error.status == 503:
            message = "The engine can't serve the request now."
        case StolonError() if error.status == 404:
            return failure(404, error.code, error.message, param=error.param)
        case _:
            log.error("request failed", exc_info=error)
            return failure(
                500, "internal_error", "The server failed.", headers={"x-should-retry": "false"}
            )
    log.warning("request not served: %s", error)
    return failure(503, error.code, message, headers={"x-should-retry": "true"})
