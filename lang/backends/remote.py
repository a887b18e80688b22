"""What backends for other programs' servers share: a block is walked here, one call for each generation."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from stolon.errors import (
    Aborted,
    BackendError,
    EngineClosed,
    InternalError,
    StolonError,
)
from stolon.lang.backends.answers import Answer, Counts
from stolon.lang.backends.dialects import Dialect
from stolon.lang.backends.dialects_body import refuse
from stolon.lang.backends.transcript import Transcript, TranscriptTokenizer, read
from stolon.lang.runtime_loop import runtime_loop
from stolon.srt.client import EngineStats, ModelInfo
from stolon.srt.protocol import (
    Delta,
    Event,
    Failed,
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
from stolon.srt.tokenizer import Tokenizer

T = TypeVar("T")
OnAnswer = Callable[[int, Answer], None]
"""Called with a sample's index and its answer whenever that has grown."""


class TokenUsage(NamedTuple):
    """Tokens that a backend has been charged for, by the server's own count."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class _Walk:
    """One sample on its way through a block."""

    sample: int
    ids: list[int]
    prompt: Usage | None = None


class RemoteBackend(ABC):
    """An EngineClient for a server that generates text after text or messages.

    Ids of tokens are letters of the branch's transcript (`transcript.py`), not the server's.

    Attributes:
        sends_messages: the server writes roles itself, so programs can't choose a chat template.
    """

    sends_messages = True

    def __init__(self, model: str, row: Dialect, *, chat_template: Any) -> None:
        self.row = row
        self.letters = TranscriptTokenizer()
        self.tokenizer: Tokenizer = self.letters
        self.chat_template = chat_template
        unknown = 2**31 - 1
        self.info = ModelInfo(
            name=model,
            architecture=row.title,
            # Ids in logit_bias and stop_token_ids are the server's, which alone knows their range.
            vocab_size=unknown,
            context_length=unknown,
            kv_slots=0,
            dtype="",
            parameters=0,
        )
        self._check = AnswerCheck()
        self._running: dict[str, Future[None]] = {}
        self._stats = EngineStats()
        self._lock = threading.Lock()
        self._closed = False

    # -- what a server does ----------------------------------------------------------------------

    @abstractmethod
    async def generate(
        self, before: Transcript, gen: Gen, samples: Sequence[int], on_answer: OnAnswer | None
    ) -> list[Answer]:
        """Answers of the samples with these indices. With `on_answer` they are streamed."""

    async def select(self, before: Transcript, select: Select, sample: int) -> SelectResult:
        """Score the choices, or refuse. `sample` tells the draws of several samples apart."""
        raise refuse(
            self.row,
            "select(): it gives no log-probs of given text",
            param="choices",
            hint="use a backend that does, or gen() with a constraint",
        )

    @abstractmethod
    async def aclose(self) -> None:
        """Close connections, on the loop."""

    # -- EngineClient ----------------------------------------------------------------------------

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        if self._closed:
            raise EngineClosed(f"the connection to {self.row.title} is closed")
        with self._lock:
            self._stats.requests += 1
            self._stats.running += 1
            self._running[request.rid] = runtime_loop().submit(self._serve(request, on_event))

    def abort(self, rid: str) -> None:
        future = self._running.get(rid)
        if future is not None:
            future.cancel()

    def stats(self) -> EngineStats:
        with self._lock:
            return msgspec.structs.replace(self._stats)

    @property
    def token_usage(self) -> TokenUsage:
        """What was used so far."""
        stats = self.stats()
        return TokenUsage(stats.prompt_tokens, stats.sampled_tokens)

    def flush_cache(self) -> None:
        raise refuse(self.row, "flush_cache()", param=None, hint="its cache is its own matter")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs and close the connections."""
        self._closed = True
        for future in list(self._running.values()):
            future.cancel()
        if not runtime_loop().is_current():
            runtime_loop().submit(self.aclose()).result()

    # -- the walk --------------------------------------------------------------------------------

    async def _serve(self, request: Request, on_event: Callable[[Event], None]) -> None:
        failure: StolonError | None = None
        try:
            await self._block(request, on_event)
        except asyncio.CancelledError:
            failure = Aborted("the request was cancelled")
            raise
        except StolonError as error:
            failure = error
        except Exception as error:
            failure = InternalError(f"{type(error).__name__} in a backend: {error}")
        finally:
            with self._lock:
                self._running.pop(request.rid, None)
                self._stats.running -= 1
                self._stats.failed += failure is not None and not isinstance(failure, Aborted)
                self._stats.aborted += isinstance(failure, Aborted)
            if failure is not None:
                on_event(Failed.of(request.rid, failure))

    async def _block(self, request: Request, on_event: Callable[[Event], None]) -> None:
        self._admit(request)
        walks = [_Walk(sample, []) for sample in range(request.n)]
        actions = [s for s in request.segments if isinstance(s, Gen | Select)]
        if len(actions) == 1 and isinstance(actions[0], Gen):
            await self._walk(request, walks, on_event)
        else:
            await together(self._walk(request, [walk], on_event) for walk in walks)
        for walk in walks:
            usage = walk.prompt or Usage()
            on_event(
                SampleDone(
                    rid=request.rid,
                    sample=walk.sample,
                    token_ids=walk.ids,
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=usage.cached_tokens,
                )
            )

    def _admit(self, request: Request) -> None:
        for name in ("prompt_logprobs", "salt", "priority"):
            if getattr(request, name):
                raise refuse(self.row, name, param=name)
        for index, segment in enumerate(request.segments):
            if isinstance(segment, Gen) and segment.grammar is not None:
                with _about(index):
                    self._check.prepare(segment.grammar)

    async def _walk(
        self, request: Request, walks: list[_Walk], on_event: Callable[[Event], None]
    ) -> None:
        """Walk the block with samples that are the same up to its only generation, or with one sample."""
        for index, segment in enumerate(request.segments):
            if isinstance(segment, Text):
                self._extend(walks, self.letters.encode(segment.text, special=segment.special))
                continue
            if isinstance(segment, Tokens):
                self._extend(walks, segment.ids)
                continue
            with _about(index):
                before = read(walks[0].ids, self.letters)
                if isinstance(segment, Gen):
                    results = await self._generate(request, index, segment, before, walks, on_event)
                else:
                    results = [await self.select(before, segment, walks[0].sample)]
            for walk, result in zip(walks, results, strict=True):
                walk.ids += result.token_ids
                walk.prompt = walk.prompt or result.usage
                on_event(
                    SegmentDone(rid=request.rid, sample=walk.sample, segment=index, result=result)
                )

    def _extend(self, walks: list[_Walk], ids: Sequence[int]) -> None:
        for walk in walks:
            walk.ids += ids

    async def _generate(
        self,
        request: Request,
        index: int,
        gen: Gen,
        before: Transcript,
        walks: list[_Walk],
        on_event: Callable[[Event], None],
    ) -> Sequence[GenResult | SelectResult]:
        if gen.sampling.max_tokens == 0:
            nothing = GenResult(text="", token_ids=[], finish=Finish(kind="length"))
            return [nothing] * len(walks)
        streams = [_Stream(request.rid, walk.sample, index, self.letters, gen) for walk in walks]
        by_sample = {walk.sample: stream for walk, stream in zip(walks, streams, strict=True)}

        def grown(sample: int, answer: Answer) -> None:
            delta = by_sample[sample].more(answer)
            if delta is not None:
                on_event(delta)

        samples = [walk.sample for walk in walks]
        answers = await self.generate(before, gen, samples, grown if request.stream else None)
        for answer in answers:
            await self._accept(gen, answer)
        if request.stream:
            for sample, answer in zip(samples, answers, strict=True):
                grown(sample, answer)
        return [answer.result(self.letters, gen.logprobs) for answer in answers]

    async def _accept(self, gen: Gen, answer: Answer) -> None:
        """Raise for an answer that is not what was asked for: no server is trusted to have enforced it."""
        if gen.grammar is None or answer.finish.kind != "stop":
            return
        stops = gen.sampling.stop or gen.sampling.stop_regex or gen.sampling.stop_token_ids
        wrong = await asyncio.to_thread(
            self._check.violation, gen.grammar, answer.text, cut=bool(stops)
        )
        if wrong is not None:
            raise BackendError(
                f"{self.row.title} did not keep to the constraint ({gen.grammar.kind}): {wrong}",
                hint=f"it answered {answer.text[:80]!r}",
            )

    def charge(self, counts: Counts) -> None:
        """Add up what a call has used."""
        with self._lock:
            self._stats.prompt_tokens += counts.prompt
            self._stats.cached_tokens += counts.cached
            self._stats.sampled_tokens += counts.completion


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


class _about:
    """Errors inside name the segment they are about."""

    def __init__(self, segment: int) -> None:
        self._segment = segment

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, StolonError) and error.segment is None:
            error.segment = self._segment


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of work done at the same time. The first error ends all of it."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
