"""What a Stolon server says of itself, and of what went wrong, looked at before it is believed."""

from __future__ import annotations

import msgspec

from stolon.errors import (
    BackendError,
    BackendUnavailable,
    EngineError,
    InternalError,
    InvalidRequest,
    ModelError,
    Overloaded,
    StolonError,
    error_from_code,
)
from stolon.lang.backends.http_errors import printable, refusal
from stolon.srt.client import EngineStats, ModelInfo, Served
from stolon.srt.protocol import BLOCKS_VERSION
from stolon.srt.tokenizer import ChatTemplate, TemplateSource

MAX_CONTEXT = 1 << 24
MAX_TEMPLATE_CHARS = 1 << 18
MAX_SPECIAL_TOKENS = 1 << 14
MAX_SPECIAL_CHARS = 256


class ServerInfo(msgspec.Struct):
    """What matters here of GET /server_info."""

    model: ModelInfo
    engine: EngineStats | None


class _Error(msgspec.Struct):
    message: str
    code: str | None = None
    param: str | None = None
    where: str | None = None
    hint: str | None = None
    segment: int | None = None


class _Refusal(msgspec.Struct):
    error: _Error


def explain(status: int, body: bytes, *, server: str) -> StolonError:
    """The error that a Stolon server tells; `status` is 0 within a stream.

    An error of the request is the one that the embedded engine raises. One of the server names it.
    """
    try:
        told = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return refusal(status or 500, body, server=server)
    message = printable(told.message)
    error = error_from_code(
        told.code or "",
        message,
        param=told.param and printable(told.param),
        where=told.where and printable(told.where),
        hint=told.hint and printable(told.hint),
    )
    if isinstance(error, InvalidRequest | ModelError):
        error.segment = told.segment
        return error
    if isinstance(error, Overloaded):
        return Overloaded(f"{server}: {message}")
    if not status:
        failed = isinstance(error, InternalError) or not isinstance(error, EngineError)
        return (BackendError if failed else BackendUnavailable)(f"{server}: {message}")
    return refusal(status, body, server=server)


def checked(served: Served) -> Served:
    if served.blocks_version != BLOCKS_VERSION:
        raise BackendError(
            f"the server speaks version {served.blocks_version} of the messages for programs, "
            f"this Stolon version {BLOCKS_VERSION}",
            hint="install the same version of Stolon on both sides",
        )
    model, tokenizer = served.model, served.tokenizer
    if not 0 < model.context_length <= MAX_CONTEXT or not 0 < model.vocab_size <= MAX_CONTEXT:
        raise BackendError("the server describes a model that can't be")
    spellings = tokenizer.special_tokens
    if len(spellings) > MAX_SPECIAL_TOKENS or any(len(s) > MAX_SPECIAL_CHARS for s in spellings):
        raise BackendError("the server describes a tokenizer that can't be")
    return served


def compiled(source: TemplateSource | None) -> ChatTemplate | None:
    """The server's chat template; it runs here, in the sandbox."""
    if source is None:
        return None
    guarded = source.special_tokens
    if (
        len(source.source) > MAX_TEMPLATE_CHARS
        or len(guarded) > MAX_SPECIAL_TOKENS
        or any(
            len(text) > MAX_SPECIAL_CHARS for text in (*guarded, source.bos_token, source.eos_token)
        )
    ):
        raise BackendError("the server's chat template is too large")
    return source.compile()
