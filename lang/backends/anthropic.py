"""Programs on Anthropic's Messages API, or on a server that has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from stolon.errors import BackendError, InvalidRequest
from stolon.lang.backends import sse
from stolon.lang.backends.answers import Answer, Counts, incomplete
from stolon.lang.backends.dialects import dialect
from stolon.lang.backends.dialects_body import generation_fields, refuse
from stolon.lang.backends.dialects_detect import Address, known_host
from stolon.lang.backends.http import HTTPClient, HTTPOptions
from stolon.lang.backends.http_answer import decoded
from stolon.lang.backends.http_errors import printable
from stolon.lang.backends.http_options import checked_address, checked_key
from stolon.lang.backends.keys import service_key
from stolon.lang.backends.messages import chat_messages
from stolon.lang.backends.openai_wire import finish
from stolon.lang.backends.remote import OneCallPerSample
from stolon.lang.backends.remote_walk import OnAnswer
from stolon.lang.backends.transcript import Transcript, transcript_template
from stolon.srt.protocol import Gen

ANTHROPIC_URL = "https://api.anthropic.com"


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Message(msgspec.Struct):
    content: list[_Block] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Error(msgspec.Struct):
    message: str = ""


class Event(msgspec.Struct):
    """One event of a stream; kinds that are not known are skipped."""

    type: str
    message: _Message | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: _Error | None = None


class Anthropic(OneCallPerSample):
    """Claude. Messages only; one generation in a message, or what the model lets be begun for it."""

    def __init__(
        self,
        model_name: str | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        options: HTTPOptions | None = None,
    ) -> None:
        """Nothing is sent yet. `api_key` is the variable ANTHROPIC_API_KEY where it is not given and the
        server is Anthropic's."""
        if model_name is None:
            raise InvalidRequest("Anthropic serves several models; name one", param="model_name")
        url = ANTHROPIC_URL if base_url is None else base_url
        checked_address(url)
        options = options or HTTPOptions(read_timeout=600.0)
        key = options.api_key if api_key is None else checked_key(api_key)
        if known_host(url) == "anthropic":
            key = service_key("Anthropic", "ANTHROPIC_API_KEY", key, options)
        row = dialect("anthropic")
        headers = {"anthropic-version": row.version, **options.headers}
        if key is not None:
            headers["x-api-key"] = key
        super().__init__(model_name, row, chat_template=transcript_template())
        self._http = HTTPClient(
            Address.of(url).root,
            replace(options, api_key=None, headers=headers),
        )
        self.server = self._http.server

    async def aclose(self) -> None:
        await self._http.aclose()

    async def answer(
        self, before: Transcript, gen: Gen, sample: int, on_answer: OnAnswer | None
    ) -> Answer:
        body = self._body(before, gen) | {"stream": on_answer is not None}
        answer = Answer()
        if on_answer is None:
            message = await self._http.json("POST", "/v1/messages", body, kind=_Message)
            if message.content is None or message.stop_reason is None:
                lacks = "content" if message.content is None else "a stop_reason"
                raise incomplete(self.server, lacks)
            answer.text = "".join(block.text for block in message.content if block.type == "text")
            self._end(answer, message.stop_reason, message.stop_sequence)
            answer.counts = _counted(answer.counts, message.usage)
            return answer
        async with self._http.stream("POST", "/v1/messages", body) as reply:
            async for data in sse.data(reply.chunks(), server=self.server):
                event = decoded(data, Event, server=self.server)
                self._take(event, answer)
                on_answer(sample, answer)
        return answer

    def _body(self, before: Transcript, gen: Gen) -> dict[str, Any]:
        if gen.sampling.max_tokens is None:
            raise refuse(self.row, "max_tokens=None", param="max_tokens", hint="give a number")
        messages, _ = chat_messages(before, self.row)
        system = []
        while messages and messages[0]["role"] == "system":
            system.append(messages.pop(0)["content"])
        if any(message["role"] == "system" for message in messages):
            raise refuse(self.row, "a system message after the beginning", param="messages")
        body = {"model": self.info.name, "messages": messages}
        body |= generation_fields(gen, self.row, "chat")
        return body | ({"system": "\n\n".join(system)} if system else {})

    def _take(self, event: Event, answer: Answer) -> None:
        match event.type:
            case "error":
                message = event.error.message if event.error else ""
                raise BackendError(f"{self.server} failed: {printable(message)}")
            case "message_start" if event.message is not None:
                answer.counts = _counted(answer.counts, event.message.usage)
            case "content_block_delta" if event.delta is not None:
                if event.delta.type == "text_delta":
                    answer.add(event.delta.text)
            case "message_delta" if event.delta is not None:
                self._end(answer, event.delta.stop_reason, event.delta.stop_sequence)
                answer.counts = _counted(answer.counts, event.usage)

    def _end(self, answer: Answer, reason: str | None, matched: str | None) -> None:
        if reason is not None:
            answer.ended = True
            answer.finish = finish(reason, self.server, matched)


def _counted(counts: Counts, usage: _Usage | None) -> Counts:
    """The counts with what a report says anew: prompts are told first, answers last."""
    if usage is None:
        return counts
    prompt = counts.prompt
    cached = counts.cached
    if usage.input_tokens is not None:
        cached = usage.cache_read_input_tokens or 0
        prompt = usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0)
    completion = counts.completion if usage.output_tokens is None else usage.output_tokens
    return Counts(prompt=prompt, completion=completion, cached=cached)
