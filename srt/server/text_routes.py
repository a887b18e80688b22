"""POST /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from fastapi import FastAPI
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from stolon.errors import InvalidRequest
from stolon.srt.server.bodies import parse_body, read_body
from stolon.srt.server.context import ServerContext
from stolon.srt.server.logprobs import token_text
from stolon.srt.server.openai_schemas import ChatMessage
from stolon.srt.server.prompts import Parts

T = TypeVar("T")


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Exactly one of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    tools: list[object] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


def add_text_routes(app: FastAPI, server: ServerContext) -> None:
    @app.post("/tokenize")
    async def tokenize(request: HTTPRequest) -> Response:
        return await _answer(server, request, TokenizeBody, lambda body: _tokenize(server, body))

    @app.post("/detokenize")
    async def detokenize(request: HTTPRequest) -> Response:
        return await _answer(
            server, request, DetokenizeBody, lambda body: _detokenize(server, body)
        )


async def _answer(
    server: ServerContext,
    request: HTTPRequest,
    kind: type[T],
    work: Callable[[T], dict[str, object]],
) -> Response:
    body = await parse_body(await read_body(request, server.limits), kind, server.limits)
    result = await server.preparer.run(lambda: work(body))
    return Response(msgspec.json.encode(result), media_type="application/json")


def _tokenize(server: ServerContext, body: TokenizeBody) -> dict[str, object]:
    server.check_model(body.model)
    prompts = server.prompts
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give exactly one of prompt and messages", param="prompt")
    if body.tools:
        raise InvalidRequest("tools are not supported yet", param="tools")
    parts: Parts
    if body.messages is not None:
        parts, _ = prompts.chat(
            body.messages, add_generation_prompt=body.add_generation_prompt is not False
        )
    else:
        prompts.text(body.prompt or "", "prompt")
        parts = [(body.prompt or "", True)]
    ids = prompts.encode(parts, bos=body.add_special_tokens is not False)
    answer: dict[str, object] = {
        "count": len(ids),
        "max_model_len": prompts.context_length,
        "tokens": ids,
    }
    if body.return_token_strs:
        answer["token_strs"] = [token_text(token, prompts.tokenizer) for token in ids]
    return answer


def _detokenize(server: ServerContext, body: DetokenizeBody) -> dict[str, object]:
    server.check_model(body.model)
    server.prompts.check_ids(body.tokens, "tokens")
    return {"prompt": server.prompts.tokenizer.decode(body.tokens, skip_special=False)}
