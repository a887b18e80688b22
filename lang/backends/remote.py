"""What backends for other programs' servers share: a block is walked here, one call for each generation."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import msgspec

from stolon.errors import Aborted, BackendError, StolonError
from stolon.lang.backends.answers import Answer, Counts, total
from stolon.lang.backends.dialect import Dialect
from stolon.lang.backends.dialects_body import refuse
from stolon.lang.backends.remote_walk import BlockWalk, OnAnswer
from stolon.lang.backends.together import together
from stolon.lang.backends.transcript import Transcript, TranscriptTokenizer
from stolon.lang.backends.under_way import UnderWay
from stolon.srt.client import EngineStats, ModelInfo
from stolon.srt.protocol import Event, Failed, Gen, Request, Select, SelectResult
from stolon.srt.remote_grammar import AnswerCheck
from stolon.srt.tokenizer import Tokenizer


class TokenUsage(NamedTuple):
    """Tokens that a backend has been charged for, by the server's own count."""

    prompt_tokens: int
    completion_tokens: int


class RemoteBackend(ABC):
    """An EngineClient for a server that generates text after text or messages.

    Ids of tokens are letters of the branch's transcript (`transcript.py`), not the server's.

    Attributes:
        server: its address, or its name, for messages.
        sends_messages: the server writes roles itself, so programs can't choose a chat template.
    """

    server: str
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
        self.check = AnswerCheck()
        self._requests = UnderWay(row.title)
        self._stats = EngineStats()
        self._lock = threading.Lock()  # guards `_stats`

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
        async def serve() -> None:
            await BlockWalk(self, request, on_event).run()

        def on_end(error: StolonError | None) -> None:
            aborted = isinstance(error, Aborted)
            with self._lock:
                self._stats.finished += error is None
                self._stats.aborted += aborted
                self._stats.failed += error is not None and not aborted
            if error is not None:
                on_event(Failed.of(request.rid, error))

        self._requests.begin(request.rid, serve, on_end)
        with self._lock:
            self._stats.requests += 1

    def abort(self, rid: str) -> None:
        self._requests.abort(rid)

    def stats(self) -> EngineStats:
        with self._lock:
            return msgspec.structs.replace(self._stats, running=len(self._requests))

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
        self._requests.close(self.aclose)

    def charge(self, counts: Counts) -> None:
        """Add up what a call has used."""
        with self._lock:
            self._stats.prompt_tokens += counts.prompt
            self._stats.cached_tokens += counts.cached
            self._stats.sampled_tokens += counts.completion


class OneCallPerSample(RemoteBackend):
    """A backend whose service answers with one text at a time."""

    @abstractmethod
    async def answer(
        self, before: Transcript, gen: Gen, sample: int, on_answer: OnAnswer | None
    ) -> Answer:
        """The answer of one sample. With `on_answer` it is streamed."""

    async def generate(
        self, before: Transcript, gen: Gen, samples: Sequence[int], on_answer: OnAnswer | None
    ) -> list[Answer]:
        answers = await together(self.answer(before, gen, one, on_answer) for one in samples)
        for answer in answers:
            if on_answer is not None and not answer.ended:
                raise BackendError(
                    f"{self.server} ended a stream without saying that it is complete"
                )
            self.charge(total([answer]))
        return answers
