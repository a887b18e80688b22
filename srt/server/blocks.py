"""/blocks: programs of the language on this server. One block of a program is one request.

The body of ``POST /blocks`` is a `protocol.Request`, the answer a stream of server-sent `protocol.Event`
objects. Numbers that JSON can't hold are spelled as text: ``"-inf"``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from stolon.errors import InvalidRequest
from stolon.srt.client import Served, TokenizerInfo
from stolon.srt.protocol import (
    BLOCKS_VERSION,
    MAX_SAMPLES,
    MAX_SEGMENTS,
    Delta,
    Event,
    GenResult,
    PromptDone,
    Request,
    SegmentDone,
    SelectResult,
    Text,
    TokenLogprob,
    Tokens,
)
from stolon.srt.server.answer import Answer
from stolon.srt.server.bodies import parse_body, read_body
from stolon.srt.server.context import ServerContext
from stolon.srt.server.errors import ErrorBody, Failure, printable
from stolon.srt.server.native_requests import RID
from stolon.srt.server.openai_schemas import MAX_SALT_CHARS
from stolon.srt.server.outcomes import Outcome

VERSION_HEADER = "x-stolon-blocks"


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Consecutive pieces of text, each with whether it may spell special tokens."""

    parts: list[tuple[str, bool]]
    at_start: bool = False


def add_block_routes(app: FastAPI, server: ServerContext) -> None:
    @app.post("/blocks")
    async def blocks(request: HTTPRequest) -> Response:
        version = request.headers.get(VERSION_HEADER, str(BLOCKS_VERSION))
        if version != str(BLOCKS_VERSION):
            raise InvalidRequest(
                f"this server takes blocks of version {BLOCKS_VERSION}, not {printable(version, 16)}"
            )
        return BlockAnswer(
            request,
            Request,
            lambda body: BlockJob(server, body),
            server.dispatcher,
            server.preparer,
        )

    @app.get("/blocks/info")
    async def info() -> Response:
        client = server.client
        template = client.chat_template
        served = Served(
            blocks_version=BLOCKS_VERSION,
            model=msgspec.structs.replace(client.info, name=server.served_name),
            tokenizer=TokenizerInfo.of(client.tokenizer),
            chat_template=None if template is None else template.describe(),
        )
        return _json(served)

    @app.get("/blocks/vocabulary")
    async def vocabulary() -> Response:
        """The bytes of every token, by id, in base64."""
        return _json(await server.preparer.run(lambda: list(server.client.tokenizer.token_bytes)))

    @app.post("/blocks/tokenize")
    async def tokenize(request: HTTPRequest) -> Response:
        limits = server.limits
        body = await parse_body(await read_body(request, limits), TokenizeBody, limits)
        server.prompts.check_size(sum(len(text) for text, _ in body.parts), "parts")
        encode = server.client.tokenizer.encode_parts
        ids = await server.preparer.run(lambda: encode(body.parts, at_start=body.at_start))
        return _json({"ids": ids})


class BlockJob:
    """A block as it came: the engine's events are the answer."""

    def __init__(self, server: ServerContext, request: Request) -> None:
        """Raises InvalidRequest for what is seen at once; the engine sees the rest."""
        self.stream = True
        self.requests = [request]
        _check(server, request)

    def whole(self, outcomes: list[Outcome]) -> object:
        raise NotImplementedError("a block is always streamed")

    def chunks(self, index: int, event: Event) -> Iterator[object]:
        yield event if all(map(math.isfinite, _floats(event))) else _spelled(event)

    def closing(self) -> Iterator[object]:
        return iter(())

    def names(self) -> dict[str, str]:
        return {}


class BlockErrorBody(ErrorBody, frozen=True, kw_only=True):
    """An error with everything that a program says about it."""

    where: str | None = None
    hint: str | None = None
    segment: int | None = None


class BlockAnswer(Answer):
    """The answer to a program, which is told where in its block an error is."""

    def failure(self, error: Exception) -> Failure:
        told = super().failure(error)
        if not isinstance(error, InvalidRequest):
            return told
        body = BlockErrorBody(
            message=printable(error.message),
            type=told.body.type,
            param=error.param,
            code=error.code,
            where=error.where and printable(error.where),
            hint=error.hint and printable(error.hint),
            segment=error.segment,
        )
        return msgspec.structs.replace(told, body=body)


def _check(server: ServerContext, request: Request) -> None:
    if not RID.fullmatch(request.rid):
        raise InvalidRequest("rid has 1 to 128 letters, digits or any of . _ : -", param="rid")
    if not 1 <= request.n <= MAX_SAMPLES:
        raise InvalidRequest(f"n must be between 1 and {MAX_SAMPLES}, not {request.n}", param="n")
    if not 1 <= len(request.segments) <= MAX_SEGMENTS:
        raise InvalidRequest(
            f"a request has 1 to {MAX_SEGMENTS} segments, not {len(request.segments)}",
            param="segments",
        )
    if len(request.salt) > MAX_SALT_CHARS:
        raise InvalidRequest(f"salt has at most {MAX_SALT_CHARS} characters", param="salt")
    if abs(request.priority) >= 2**31:
        raise InvalidRequest("priority is out of range", param="priority")
    texts = (segment.text for segment in request.segments if isinstance(segment, Text))
    server.prompts.check_size(sum(map(len, texts)), "prompt")
    for segment in request.segments:
        if isinstance(segment, Tokens):
            server.prompts.check_ids(segment.ids, "segments")


def _floats(event: Event) -> Iterator[float]:
    """The log-probs of an event, which may be infinite."""
    match event:
        case Delta(logprobs=list(entries)) | PromptDone(logprobs=entries):
            yield from _logprobs(entries)
        case SegmentDone(result=GenResult(logprobs=list(entries))):
            yield from _logprobs(entries)
        case SegmentDone(result=SelectResult(scores=scores)):
            for score in scores:
                yield from score.token_logprobs
                yield from (score.logprob, score.normalized, score.unconditional or 0.0)


def _logprobs(entries: Iterable[TokenLogprob]) -> Iterator[float]:
    for entry in entries:
        yield entry.logprob or 0.0
        yield from (logprob for _, logprob in entry.top)


def _spelled(value: Any) -> Any:
    """Plain data with every number that JSON can't hold as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return _spelled(msgspec.to_builtins(value))
    return value


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
