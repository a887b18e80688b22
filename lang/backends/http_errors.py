"""From what went wrong with a server to the one tree of errors. Its own words are bounded, on one line."""

from __future__ import annotations

import os
import re
import ssl

import httpx
import msgspec

from stolon.errors import (
    AccessDenied,
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    Overloaded,
    StolonError,
)

MAX_MESSAGE_CHARS = 400

_WHAT_TO_CHECK = {
    False: "is it running, and are the host and the port of the address right?",
    True: "is it still running?",
}

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")

# The HTTP library quotes the bytes that it can't make sense of: they may be a key, sent or echoed.
_QUOTED = re.compile(r"""\W*(\bbytearray\()?\bb['"].*""", re.DOTALL)


def unreachable(
    server: str, error: httpx.HTTPError, *, begun: bool = False, ever: bool = True
) -> BackendError:
    """The error of a connection that did not come about, broke off, or fell silent.

    `begun`: in the middle of an answer. `ever`: the server has accepted a connection before.
    """
    detail = printable(_QUOTED.sub("", str(error))) or type(error).__name__
    match error:
        case httpx.ConnectTimeout():
            return BackendUnavailable(
                f"{server} did not accept a connection in time", hint=_WHAT_TO_CHECK[ever]
            )
        case httpx.TimeoutException():
            return BackendUnavailable(
                f"{server} sent nothing for too long", hint="see read_timeout"
            )
        case httpx.ConnectError():
            return BackendUnavailable(
                f"{server} can't be reached: {_cause(error) or detail}", hint=_WHAT_TO_CHECK[ever]
            )
        case httpx.UnsupportedProtocol() | httpx.TooManyRedirects() | httpx.DecodingError():
            return BackendError(f"{server} can't be used: {detail}")
    broken = "broke off in the middle of an answer" if begun else "was lost before an answer came"
    return BackendUnavailable(f"the connection to {server} {broken}: {detail}")


def refusal(status: int, body: bytes, *, server: str) -> StolonError:
    """The error that an answer with a status of 300 or above stands for."""
    message, param = _explanation(body)
    told = f"{server} answered {status}" + (f": {message}" if message else "")
    match status:
        case 401 | 403:
            return AccessDenied(told, hint="give the right api_key")
        case 404 | 405:
            return BackendError(told, hint="is the address right?")
        case 408 | 502 | 503 | 504:
            return BackendUnavailable(told)
        case 429:
            return Overloaded(told)
        case _ if 400 <= status < 500:
            return InvalidRequest(message or told, param=param)
        case _ if status < 400:
            return BackendError(told, hint="it sends clients elsewhere; give the final address")
    return BackendError(told)


def _cause(error: BaseException | None) -> str:
    """What the system said of a connection that did not come about; its clients only say that it failed."""
    while error is not None:
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
            # Below 0 are errors of names; asyncio says of all others that a call failed.
            return printable(os.strerror(error.errno) if error.errno > 0 else error.strerror or "")
        error = error.__cause__ or error.__context__
    return ""


def printable(text: str) -> str:
    """Text of a server for a message: one line, bounded."""
    text = _UNPRINTABLE.sub(" ", text).strip()
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def _explanation(body: bytes) -> tuple[str, str | None]:
    """(message, param) of an error's body, in any of the usual shapes; the body's own text otherwise."""
    try:
        data = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        text = body.decode("utf-8", "replace")
        return ("" if text.lstrip().startswith("<") else printable(text)), None
    param = None
    for _ in range(3):
        if isinstance(data, dict):
            param = data.get("param", param)
            data = next((data[k] for k in ("error", "message", "detail") if data.get(k)), "")
    if not isinstance(data, str):
        data = msgspec.json.encode(data).decode()
    return printable(data), printable(param) if isinstance(param, str) else None
