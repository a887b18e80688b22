"""POST /v1/completions: text in, text out, with echo and the legacy log-prob shape."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

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
    PromptDone,
    PromptLogprobs,
    Request,
    SampleDone,
    Segment,
    SegmentDone,
)
from stolon.srt.server.context import ServerContext, new_id
from stolon.srt.server.logprobs import LegacyLogprobs
from stolon.srt.server.openai_schemas import CompletionBody, refuse_unsupported
from stolon.srt.server.outcomes import Outcome, Sample, TokenCount, openai_finish

DEFAULT_MAX_TOKENS = 16
MAX_TOP_LOGPROBS = 20


def add_completion_routes(app: FastAPI, server: ServerContext) -> None:
    @app.post("/v1/completions")
    async def completions(request: HTTPRequest) -> Response:
        return server.answer(request, CompletionBody, lambda body: CompletionJob(server, body))


def split_prompts(body: CompletionBody, limit: int) -> list[str | list[int]]:
    """The prompts of a body: one text, texts, one list of ids, or lists of ids.

    Raises InvalidRequest.
    """
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt is missing or empty", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [ids]
    if ids:
        raise InvalidRequest("prompt mixes token ids with other prompts", param="prompt")
    if len(prompt) > limit:
        raise InvalidRequest(f"prompt takes at most {limit} prompts", param="prompt")
    return [item for item in prompt if not isinstance(item, int)]


@dataclass(slots=True)
class _Stream:
    """The state of one streamed choice."""

    logprobs: LegacyLogprobs | None
    echoed: bool = False
    result: GenResult | None = None


class CompletionJob:
    """A text completion, streamed or whole. Choice `index` is prompt x n + sample."""

    def __init__(self, server: ServerContext, body: CompletionBody) -> None:
        server.check_model(body.model)
        refuse_unsupported(body)
        self._server = server
        self._body = body
        self._id = new_id("cmpl-")
        self._created = int(time.time())
        self._n = body.samples()
        self._usage = TokenCount()
        self._prompts = split_prompts(body, server.limits.max_prompts)
        self._prompt_done: dict[int, PromptDone] = {}
        self._streams: dict[tuple[int, int], _Stream] = {}
        self.stream = bool(body.stream)
        self.requests = self._requests()

    def whole(self, outcomes: list[Outcome]) -> object:
        choices = []
        for index, outcome in enumerate(outcomes):
            for number, sample in enumerate(outcome.samples):
                self._usage.add(index, sample)
                choices.append(self._choice(index, number, sample, outcome.prompt))
        return self._envelope() | {"choices": choices, "usage": self._usage.json()}

    def chunks(self, index: int, event: Event) -> Iterator[object]:
        match event:
            case PromptDone():
                self._prompt_done[index] = event
            case Delta():
                yield self._piece(index, event.sample, event)
            case SegmentDone(result=GenResult() as result):
                openai_finish(result)
                self._stream_of(index, event.sample).result = result
                self._usage.add_result(result)
            case SampleDone():
                self._usage.add_done(index, event)
                yield from self._finish(index, event)

    def names(self) -> dict[str, str]:
        return self._body.names()

    def closing(self) -> Iterator[object]:
        if self._body.include_usage:
            yield self._envelope() | {"choices": [], "usage": self._usage.json()}

    def _requests(self) -> list[Request]:
        body = self._body
        if len(self._prompts) * self._n > self._server.limits.max_sequences:
            raise InvalidRequest(
                f"prompts times n is above {self._server.limits.max_sequences}", param="n"
            )
        if body.best_of is not None and body.best_of != self._n:
            raise InvalidRequest("best_of must equal n; ranking is not supported", param="best_of")
        top = body.logprobs
        if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(
                f"logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="logprobs"
            )
        limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        vocab_size = self._server.prompts.vocab_size
        gen = Gen(
            sampling=body.sampling(limit, vocab_size),
            grammar=body.grammar(),
            logprobs=None if top is None else LogprobSpec(top=top),
        )
        # Log-probs of the echoed text come from the prompt's own pass over the model.
        scored = PromptLogprobs(top=top) if body.echo and top is not None else None
        return [
            Request(
                rid=f"{self._id}-{index}",
                segments=[*self._segments(prompt), gen],
                n=self._n,
                stream=self.stream,
                salt=body.salt(),
                prompt_logprobs=scored,
                priority=body.order(),
            )
            for index, prompt in enumerate(self._prompts)
        ]

    def _segments(self, prompt: str | list[int]) -> list[Segment]:
        prompts = self._server.prompts
        if isinstance(prompt, str):
            return prompts.text(prompt, "prompt")
        return prompts.ids(prompt, "prompt")

    def _echo_text(self, index: int) -> str:
        if not self._body.echo:
            return ""
        prompt = self._prompts[index]
        if isinstance(prompt, str):
            return prompt
        return self._server.client.tokenizer.decode(prompt, skip_special=False)

    def _new_logprobs(self) -> LegacyLogprobs | None:
        if self._body.logprobs is None:
            return None
        return LegacyLogprobs(self._server.client.tokenizer, top=self._body.logprobs)

    def _add_prompt(self, logprobs: LegacyLogprobs, index: int, prompt: PromptDone) -> None:
        """The echoed tokens. A BOS that the text does not spell takes no place in it."""
        tokenizer = self._server.client.tokenizer
        text, bos = self._prompts[index], tokenizer.bos_id
        added = (
            isinstance(text, str)
            and bos is not None
            and prompt.token_ids[:1] == [bos]
            and not text.encode().startswith(tokenizer.token_bytes[bos])
        )
        logprobs.add(prompt.logprobs, first_hidden=added)

    def _add_generated(self, logprobs: LegacyLogprobs, piece: GenResult | Delta) -> None:
        visible = self._body.skip_special_tokens is False
        special = self._server.client.tokenizer.special_ids
        logprobs.add(piece.logprobs or [], hidden=frozenset() if visible else special)

    def _choice(
        self, index: int, number: int, sample: Sample, prompt: PromptDone | None
    ) -> dict[str, object]:
        result = sample.result
        logprobs = self._new_logprobs()
        if logprobs is not None:
            if prompt is not None:
                self._add_prompt(logprobs, index, prompt)
            self._add_generated(logprobs, result)
        choice: dict[str, object] = {
            "index": index * self._n + number,
            "text": self._echo_text(index) + result.text,
            "logprobs": None if logprobs is None else logprobs.take(),
            "finish_reason": openai_finish(result),
            "stop_reason": result.finish.matched,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = result.token_ids
            choice["prompt_token_ids"] = sample.prompt_ids
        return choice

    def _stream_of(self, index: int, sample: int) -> _Stream:
        key = (index, sample)
        if key not in self._streams:
            self._streams[key] = _Stream(self._new_logprobs())
        return self._streams[key]

    def _piece(self, index: int, sample: int, delta: Delta | None) -> dict[str, object]:
        """A chunk with the delta, if any; the first of a choice also echoes the prompt."""
        stream = self._stream_of(index, sample)
        text = ""
        if not stream.echoed:
            stream.echoed = True
            text = self._echo_text(index)
            if stream.logprobs is not None and index in self._prompt_done:
                self._add_prompt(stream.logprobs, index, self._prompt_done[index])
        if delta is not None:
            text += delta.text
            if stream.logprobs is not None:
                self._add_generated(stream.logprobs, delta)
        choice: dict[str, object] = {
            "index": index * self._n + sample,
            "text": text,
            "logprobs": None if stream.logprobs is None else stream.logprobs.take(),
            "finish_reason": None,
        }
        if self._body.return_token_ids and delta is not None:
            choice["token_ids"] = delta.token_ids
        return self._chunk(choice)

    def _finish(self, index: int, done: SampleDone) -> Iterator[object]:
        stream = self._stream_of(index, done.sample)
        if not stream.echoed and self._body.echo:  # nothing was generated
            yield self._piece(index, done.sample, None)
        if stream.result is None:
            return
        choice: dict[str, object] = {
            "index": index * self._n + done.sample,
            "text": "",
            "logprobs": None,
            "finish_reason": openai_finish(stream.result),
            "stop_reason": stream.result.finish.matched,
        }
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = done.token_ids[: done.prompt_tokens]
        yield self._chunk(choice)

    def _envelope(self) -> dict[str, object]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._server.served_name,
            "system_fingerprint": self._server.fingerprint,
        }

    def _chunk(self, choice: dict[str, object]) -> dict[str, object]:
        chunk = self._envelope() | {"choices": [choice]}
        if self._body.include_usage:
            chunk["usage"] = None
        return chunk
