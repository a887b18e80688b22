"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fastapi import FastAPI
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from stolon.errors import InvalidRequest
from stolon.srt.protocol import (
    Delta,
    Event,
    Gen,
    GenResult,
    LogprobSpec,
    Request,
    SampleDone,
    SegmentDone,
)
from stolon.srt.server.context import ServerContext, new_id
from stolon.srt.server.errors import renamed
from stolon.srt.server.logprobs import chat_logprobs
from stolon.srt.server.openai_schemas import ChatBody, refuse_unsupported
from stolon.srt.server.outcomes import Outcome, Sample, TokenCount, openai_finish

MAX_TOP_LOGPROBS = 20


def add_chat_routes(app: FastAPI, server: ServerContext) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(request: HTTPRequest) -> Response:
        return server.answer(request, ChatBody, lambda body: ChatJob(server, body))


def chat_request(server: ServerContext, body: ChatBody, rid: str) -> Request:
    """The engine request of a chat body. Raises InvalidRequest naming the field at fault."""
    server.check_model(body.model)
    refuse_unsupported(body)
    _check_tools(body)
    # max_completion_tokens supersedes max_tokens; None means to the end of the context.
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    try:
        sampling = body.sampling(limit, server.prompts.vocab_size)
    except InvalidRequest as error:
        raise renamed(error, body.names()) from None
    _, segments = server.prompts.chat(
        body.messages, add_generation_prompt=body.add_generation_prompt is not False
    )
    gen = Gen(sampling=sampling, grammar=body.grammar(), logprobs=_logprob_spec(body))
    return Request(
        rid=rid,
        segments=[*segments, gen],
        n=body.samples(),
        stream=bool(body.stream),
        salt=body.salt(),
        priority=body.order(),
    )


def _check_tools(body: ChatBody) -> None:
    if body.tools and body.tool_choice != "none":
        raise InvalidRequest(
            "tools are not supported yet; send tool_choice none, or no tools", param="tools"
        )
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest("tool_choice needs tools", param="tool_choice")


def _logprob_spec(body: ChatBody) -> LogprobSpec | None:
    top = body.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs"
        )
    if top and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return LogprobSpec(top=top) if body.logprobs else None


class ChatJob:
    """A chat completion, streamed or whole."""

    def __init__(self, server: ServerContext, body: ChatBody) -> None:
        self._server = server
        self._body = body
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())
        self._begun: set[int] = set()
        self._ended: dict[int, GenResult] = {}
        self._usage = TokenCount()
        self.stream = bool(body.stream)
        self.requests = [chat_request(server, body, self._id)]

    def whole(self, outcomes: list[Outcome]) -> object:
        (outcome,) = outcomes
        for sample in outcome.samples:
            self._usage.add(0, sample)
        answer = self._envelope("chat.completion")
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = outcome.samples[0].prompt_ids
        answer["choices"] = [self._choice(i, sample) for i, sample in enumerate(outcome.samples)]
        answer["usage"] = self._usage.json()
        return answer

    def chunks(self, index: int, event: Event) -> Iterator[object]:
        match event:
            case Delta():
                yield from self._begin(event.sample)
                yield self._delta_chunk(event)
            case SegmentDone(result=GenResult() as result):
                yield from self._begin(event.sample)
                openai_finish(result)
                self._ended[event.sample] = result
                self._usage.add_result(result)
            case SampleDone():
                self._usage.add_done(0, event)
                yield self._finish_chunk(event)

    def names(self) -> dict[str, str]:
        return self._body.names()

    def closing(self) -> Iterator[object]:
        if self._body.include_usage:
            yield self._envelope("chat.completion.chunk") | {
                "choices": [],
                "usage": self._usage.json(),
            }

    def _envelope(self, kind: str) -> dict[str, object]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._server.served_name,
            "system_fingerprint": self._server.fingerprint,
        }

    def _choice(self, index: int, sample: Sample) -> dict[str, object]:
        result = sample.result
        choice: dict[str, object] = {
            "index": index,
            "message": {"role": "assistant", "content": result.text, "refusal": None},
            "logprobs": self._logprobs(result),
            "finish_reason": openai_finish(result),
            "stop_reason": result.finish.matched,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = result.token_ids
        return choice

    def _logprobs(self, piece: GenResult | Delta) -> dict[str, object] | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(
            piece.logprobs or [],
            self._server.client.tokenizer,
            with_top=bool(self._body.top_logprobs),
        )

    def _begin(self, sample: int) -> Iterator[object]:
        if sample not in self._begun:
            self._begun.add(sample)
            yield self._chunk(sample, {"role": "assistant", "content": ""})

    def _delta_chunk(self, event: Delta) -> object:
        extra: dict[str, object] = {"logprobs": self._logprobs(event)}
        if self._body.return_token_ids:
            extra["token_ids"] = event.token_ids
        return self._chunk(event.sample, {"content": event.text}, **extra)

    def _finish_chunk(self, event: SampleDone) -> object:
        result = self._ended[event.sample]
        chunk = self._chunk(
            event.sample,
            {},
            finish_reason=openai_finish(result),
            stop_reason=result.finish.matched,
        )
        if self._body.return_token_ids:
            chunk["prompt_token_ids"] = event.token_ids[: event.prompt_tokens]
        return chunk

    def _chunk(self, sample: int, delta: dict[str, str], **extra: object) -> dict[str, object]:
        choice = {"index": sample, "delta": delta, "logprobs": None, "finish_reason": None} | extra
        chunk = self._envelope("chat.completion.chunk") | {"choices": [choice]}
        if self._body.include_usage:
            chunk["usage"] = None
        return chunk
