"""A block walked here, its texts put together: each generation is a call of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from stolon.errors import BackendError, StolonError
from stolon.lang.backends.answers import Answer
from stolon.lang.backends.dialect import Dialect
from stolon.lang.backends.dialects_body import refuse
from stolon.lang.backends.together import together
from stolon.lang.backends.transcript import Transcript, TranscriptTokenizer, read
from stolon.srt.protocol import (
    Delta,
    Event,
    Finish,
    Gen,
    GenResult,
    Request,
    SampleDone,
    SegmentDone,
    Select,
    SelectResult,
    Text,
    Tokens,
    Usage,
)
from stolon.srt.remote_grammar import AnswerCheck

OnAnswer = Callable[[int, Answer], None]
"""Called with a sample's index and its answer whenever that has grown."""


class Server(Protocol):
    """What a walk needs; see `RemoteBackend`."""

    row: Dialect
    server: str
    letters: TranscriptTokenizer
    check: AnswerCheck

    async def generate(
        self, before: Transcript, gen: Gen, samples: Sequence[int], on_answer: OnAnswer | None
    ) -> list[Answer]: ...

    async def select(self, before: Transcript, select: Select, sample: int) -> SelectResult: ...


@dataclass(slots=True)
class _Sample:
    """One sample on its way through the block."""

    index: int
    ids: list[int]
    prompt: Usage | None = None


class BlockWalk:
    """One request, walked with every one of its samples."""

    def __init__(self, server: Server, request: Request, on_event: Callable[[Event], None]) -> None:
        self._server = server
        self._request = request
        self._on_event = on_event

    async def run(self) -> None:
        """Walk to the end. Raises what the server refused, or did wrong, with the segment it is about."""
        request = self._request
        self._admit()
        samples = [_Sample(index, []) for index in range(request.n)]
        actions = [s for s in request.segments if isinstance(s, Gen | Select)]
        if len(actions) == 1 and isinstance(actions[0], Gen):
            await self._walk(samples)
        else:
            await together(self._walk([sample]) for sample in samples)
        for sample in samples:
            usage = sample.prompt or Usage()
            self._on_event(
                SampleDone(
                    rid=request.rid,
                    sample=sample.index,
                    token_ids=sample.ids,
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=usage.cached_tokens,
                )
            )

    def _admit(self) -> None:
        for name in ("prompt_logprobs", "salt", "priority"):
            if getattr(self._request, name):
                raise refuse(self._server.row, name, param=name)
        for index, segment in enumerate(self._request.segments):
            if isinstance(segment, Gen) and segment.grammar is not None:
                with _about(index):
                    self._server.check.prepare(segment.grammar)

    async def _walk(self, samples: list[_Sample]) -> None:
        """Walk with samples that are the same up to the block's only generation, or with one sample."""
        server = self._server
        for index, segment in enumerate(self._request.segments):
            if isinstance(segment, Text | Tokens):
                known = (
                    segment.ids
                    if isinstance(segment, Tokens)
                    else server.letters.encode(segment.text, special=segment.special)
                )
                for sample in samples:
                    sample.ids += known
                continue
            with _about(index):
                before = read(samples[0].ids, server.letters)
                results: Sequence[GenResult | SelectResult]
                if isinstance(segment, Gen):
                    results = await self._generate(index, segment, before, samples)
                else:
                    results = [await server.select(before, segment, samples[0].index)]
            for sample, result in zip(samples, results, strict=True):
                sample.ids += result.token_ids
                sample.prompt = sample.prompt or result.usage
                self._on_event(
                    SegmentDone(
                        rid=self._request.rid, sample=sample.index, segment=index, result=result
                    )
                )

    async def _generate(
        self, segment: int, gen: Gen, before: Transcript, samples: list[_Sample]
    ) -> Sequence[GenResult]:
        if gen.sampling.max_tokens == 0:
            nothing = GenResult(text="", token_ids=[], finish=Finish(kind="length"))
            return [nothing] * len(samples)
        rid, letters = self._request.rid, self._server.letters
        streams = {
            sample.index: _Stream(rid, sample.index, segment, letters, gen) for sample in samples
        }

        def grown(sample: int, answer: Answer) -> None:
            delta = streams[sample].more(answer)
            if delta is not None:
                self._on_event(delta)

        streamed = self._request.stream
        answers = await self._server.generate(
            before, gen, list(streams), grown if streamed else None
        )
        for answer in answers:
            await self._accept(gen, answer)
        if streamed:
            for index, answer in zip(streams, answers, strict=True):
                grown(index, answer)
        return [answer.result(letters, gen.logprobs) for answer in answers]

    async def _accept(self, gen: Gen, answer: Answer) -> None:
        """Raise for an answer that is not what was asked for: no server is trusted to have enforced it."""
        server = self._server.server
        answer.check_logprobs(gen.logprobs, server)
        if gen.grammar is None or answer.finish.kind != "stop":
            return
        stops = gen.sampling.stop or gen.sampling.stop_regex or gen.sampling.stop_token_ids
        wrong = await asyncio.to_thread(
            self._server.check.violation, gen.grammar, answer.text, cut=bool(stops)
        )
        if wrong is not None:
            raise BackendError(
                f"{server} did not keep to the constraint ({gen.grammar.kind}): {wrong}",
                hint=f"it answered {answer.text[:80]!r}",
            )


class _Stream:
    """What of one answer has been passed on."""

    def __init__(
        self, rid: str, sample: int, segment: int, tokenizer: TranscriptTokenizer, gen: Gen
    ) -> None:
        self._rid, self._sample, self._segment = rid, sample, segment
        self._tokenizer = tokenizer
        self._logprobs = gen.logprobs
        self._chars = 0
        self._tokens = 0

    def more(self, answer: Answer) -> Delta | None:
        """What is new since the last time, None if nothing is."""
        text = answer.text[self._chars :]
        logprobs = None
        count = self._tokens
        if self._logprobs is not None:
            count = answer.covered()
            logprobs = answer.logprobs(self._tokenizer, self._logprobs, self._tokens, count)
        if not text and count == self._tokens:
            return None
        self._chars += len(text)
        self._tokens = count
        return Delta(
            rid=self._rid,
            sample=self._sample,
            segment=self._segment,
            text=text,
            token_ids=[entry.token for entry in logprobs or ()],
            logprobs=logprobs,
        )


@contextmanager
def _about(segment: int) -> Iterator[None]:
    """Errors inside name the segment they are about."""
    try:
        yield
    except StolonError as error:
        if error.segment is None:
            error.segment = segment
        raise
