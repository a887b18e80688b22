"""POST /generate: tokens or text in, tokens and text out, in SGLang's shape.

Unknown fields are refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from stolon.srt.protocol import (
    Delta,
    Event,
    Finish,
    GenResult,
    PromptDone,
    SampleDone,
    SegmentDone,
    TokenLogprob,
)
from stolon.srt.server.context import ServerContext
from stolon.srt.server.logprobs import alternatives, finite
from stolon.srt.server.native_requests import native_requests
from stolon.srt.server.native_schemas import GenerateBody, NativeSampling
from stolon.srt.server.outcomes import Outcome


def add_native_routes(app: FastAPI, server: ServerContext) -> None:
    @app.post("/generate")
    @app.put("/generate")
    async def generate(request: HTTPRequest) -> Response:
        return server.answer(request, GenerateBody, lambda body: GenerateJob(server, body))


@dataclass(slots=True)
class _Sample:
    """What is known of one sample so far; text and ids are cumulative."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    result: GenResult | None = None
    done: SampleDone | None = None


class GenerateJob:
    """A native generation. Sequence `index` is prompt x n + sample."""

    def __init__(self, server: ServerContext, body: GenerateBody) -> None:
        self._server = server
        self._body = body
        sampling = body.sampling_params or NativeSampling()
        self._n = sampling.samples()
        self._start = time.monotonic()
        self._samples: dict[tuple[int, int], _Sample] = {}
        self._prompts: dict[int, PromptDone] = {}
        self.stream = bool(body.stream)
        self.requests, self._batch = native_requests(server, body, sampling)

    def whole(self, outcomes: list[Outcome]) -> object:
        objects = []
        for index, outcome in enumerate(outcomes):
            if outcome.prompt is not None:
                self._prompts[index] = outcome.prompt
            for number, sample in enumerate(outcome.samples):
                result = sample.result
                state = _Sample(
                    result.text, result.token_ids, result.logprobs or [], result, sample.done
                )
                objects.append(self._object(index, number, state))
        return objects if self._many else objects[0]

    def chunks(self, index: int, event: Event) -> Iterator[object]:
        match event:
            case PromptDone():
                self._prompts[index] = event
            case Delta():
                state = self._state(index, event.sample)
                state.text += event.text
                state.ids += event.token_ids
                state.logprobs += event.logprobs or []
                yield self._chunk(index, event.sample, state)
            case SegmentDone(result=GenResult() as result):
                state = self._state(index, event.sample)
                state.text, state.ids, state.result = result.text, result.token_ids, result
                state.logprobs = result.logprobs or []
            case SampleDone():
                state = self._state(index, event.sample)
                state.done = event
                yield self._chunk(index, event.sample, state)

    def names(self) -> dict[str, str]:
        return self._body.names()

    def closing(self) -> Iterator[object]:
        return iter(())

    @property
    def _many(self) -> bool:
        return self._batch or self._n > 1

    def _state(self, index: int, sample: int) -> _Sample:
        return self._samples.setdefault((index, sample), _Sample())

    def _chunk(self, index: int, sample: int, state: _Sample) -> dict[str, object]:
        chunk = self._object(index, sample, state)
        if self._many:
            chunk["index"] = index * self._n + sample
        return chunk

    def _object(self, index: int, sample: int, state: _Sample) -> dict[str, object]:
        answer: dict[str, object] = {
            "text": state.text,
            "output_ids": state.ids,
            "meta_info": self._meta(index, sample, state),
        }
        if self._body.return_prompt_token_ids and state.done is not None:
            answer["prompt_token_ids"] = state.done.token_ids[: state.done.prompt_tokens]
        return answer

    def _meta(self, index: int, sample: int, state: _Sample) -> dict[str, object]:
        rid = self.requests[index].rid
        meta: dict[str, object] = {
            "id": rid if self._n == 1 else f"{rid}-{sample}",
            "finish_reason": None,
            "completion_tokens": len(state.ids),
            "weight_version": self._server.client.info.weights_version,
        }
        if state.done is not None:
            meta["prompt_tokens"] = state.done.prompt_tokens
            meta["cached_tokens"] = state.done.cached_tokens
            meta["e2e_latency"] = time.monotonic() - self._start
        if state.result is not None:
            usage = state.result.usage
            meta["finish_reason"] = finish_reason(state.result.finish, len(state.ids))
            meta["completion_tokens"] = usage.completion_tokens
            meta["num_retractions"] = usage.retractions
            meta["queue_time"] = usage.queue_time
            meta["prefill_time"] = usage.prefill_time
            meta["decode_time"] = usage.decode_time
        if self._body.return_logprob:
            self._add_logprobs(meta, index, state)
        return meta

    def _add_logprobs(self, meta: dict[str, object], index: int, state: _Sample) -> None:
        tops = bool(self._body.top_logprobs_num)
        prompt = self._prompts.get(index)
        meta["output_token_logprobs"] = [self._triple(e.token, e.logprob) for e in state.logprobs]
        meta["output_token_logprobs_length"] = len(state.logprobs)
        if tops:
            meta["output_top_logprobs"] = [self._top(entry) for entry in state.logprobs]
        if prompt is not None:
            meta["input_token_logprobs"] = [
                self._triple(e.token, e.logprob) for e in prompt.logprobs
            ]
            if tops:
                meta["input_top_logprobs"] = [self._top(entry) for entry in prompt.logprobs]

    def _triple(self, token: int, logprob: float | None) -> tuple[float | None, int, str | None]:
        with_text = bool(self._body.return_text_in_logprobs)
        text = self._server.client.tokenizer.decode([token], skip_special=False)
        return (
            None if logprob is None else finite(logprob),
            token,
            text if with_text else None,
        )

    def _top(self, entry: TokenLogprob) -> list[tuple[float | None, int, str | None]] | None:
        if entry.logprob is None:
            return None
        return [self._triple(token, logprob) for token, logprob in alternatives(entry)]


def finish_reason(finish: Finish, length: int) -> dict[str, object]:
    """SGLang's finish object."""
    match finish.kind:
        case "stop":
            return {"type": "stop", "matched": finish.matched}
        case "length":
            return {"type": "length", "length": length}
        case _:
            return {
                "type": "abort",
                "message": "The generation was cancelled.",
                "status_code": None,
                "err_type": None,
            }
