"""An engine that takes no time: what is left is the language's own."""

from __future__ import annotations

import time
from collections.abc import Callable

from stolon.srt.client import EngineStats, ModelInfo
from stolon.srt.protocol import (
    Event,
    Finish,
    Gen,
    GenResult,
    Request,
    SampleDone,
    SegmentDone,
)
from stolon.srt.tokenizer import ChatTemplate, Tokenizer

_RESULT = GenResult(text="ok", token_ids=[0, 0], finish=Finish(kind="stop"))


class InstantEngine:
    """Implements EngineClient: answers every generation with two tokens, inside `submit`.

    Attributes:
        seconds: spent in here, without what its events set going.
        requests: all that it was sent.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.chat_template: ChatTemplate | None = None
        self.info = ModelInfo(
            name="instant",
            architecture="none",
            vocab_size=self.tokenizer.vocab_size,
            context_length=1 << 30,
            kv_slots=1 << 30,
            dtype="none",
            parameters=0,
        )
        self.seconds = 0.0
        self.requests: list[Request] = []

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Answer at once."""
        begun = time.perf_counter()
        self.requests.append(request)
        events: list[Event] = []
        for sample in range(request.n):
            for index, segment in enumerate(request.segments):
                if isinstance(segment, Gen):
                    events.append(
                        SegmentDone(rid=request.rid, sample=sample, segment=index, result=_RESULT)
                    )
            events.append(
                SampleDone(
                    rid=request.rid,
                    sample=sample,
                    token_ids=[0],
                    prompt_tokens=0,
                    cached_tokens=0,
                )
            )
        self.seconds += time.perf_counter() - begun
        for event in events:
            on_event(event)

    def abort(self, rid: str) -> None:
        """Nothing runs."""

    def stats(self) -> EngineStats:
        return EngineStats(requests=len(self.requests))

    def flush_cache(self) -> None:
        """Nothing is cached."""

    def close(self) -> None:
        """Nothing is open."""
