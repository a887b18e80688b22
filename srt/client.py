"""The one door to an engine, in process or behind a socket. The language and the servers know no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from stolon.srt.protocol import Event, Failed, Request, SampleDone
from stolon.srt.tokenizer import ChatTemplate, TemplateSource, Tokenizer


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is served.

    Attributes:
        context_length: longest sequence that this engine accepts, in tokens.
        kv_slots: tokens that the KV cache holds, each of `kv_token_bytes` bytes.
    """

    name: str
    architecture: str
    vocab_size: int
    context_length: int
    kv_slots: int
    kv_token_bytes: int = 0
    dtype: str
    parameters: int
    weights_version: str = "0"


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of a `Tokenizer` but for the bytes of its tokens."""

    vocab_size: int
    special_tokens: dict[str, int]
    bos_id: int | None
    eos_ids: list[int]
    add_bos: bool
    fingerprint: str

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenizerInfo:
        return cls(
            vocab_size=tokenizer.vocab_size,
            special_tokens=tokenizer.special_tokens,
            bos_id=tokenizer.bos_id,
            eos_ids=sorted(tokenizer.eos_ids),
            add_bos=tokenizer.add_bos,
            fingerprint=tokenizer.fingerprint,
        )


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a server tells a program that is to run on it. `blocks_version` is `protocol.BLOCKS_VERSION`."""

    blocks_version: int
    model: ModelInfo
    tokenizer: TokenizerInfo
    chat_template: TemplateSource | None


class EngineStats(msgspec.Struct, kw_only=True):
    """Counters since start and gauges of now. Times in seconds.

    Every request that is submitted counts in `requests`, and once it is over in one of `finished`, `failed`
    and `aborted`, whatever its number of samples and however early it ended.

    Attributes:
        finished: requests whose samples all came to their end.
        failed: requests that ended with an error: refused (also when a grammar is, or the queue is full),
            broken by a fault, or cut off because the engine was closed.
        aborted: requests that were cancelled, before they began or while some sample was still running.
        kv_used: slots of running sequences and cached prefixes; kv_evictable of them can be had back.
        short_heads: output rows whose logits were computed for the few tokens that a grammar left.
        skipped_heads: output rows whose logits were not computed, as a grammar left one token.
    """

    running: int = 0
    waiting: int = 0
    kv_slots: int = 0
    kv_used: int = 0
    kv_cached: int = 0
    kv_evictable: int = 0
    steps: int = 0
    requests: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    retractions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    sampled_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    evicted_tokens: int = 0
    short_heads: int = 0
    skipped_heads: int = 0
    step_time: float = 0.0
    forward_time: float = 0.0
    sample_time: float = 0.0


class EngineClient(Protocol):
    """An engine as its users see it. All methods are thread-safe."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate | None: ...

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Queue a request. `on_event` is called from the engine's own thread, in order, and must not
        block: n SampleDone events (one per sample) or one Failed event end the request. Errors of the
        request itself also arrive as Failed; only EngineClosed is raised here."""
        ...

    def abort(self, rid: str) -> None:
        """Cancel. Running samples end with finish kind `abort` and what they have."""
        ...

    def stats(self) -> EngineStats: ...

    def flush_cache(self) -> None:
        """Drop every cached prefix that no running request uses."""
        ...

    def close(self) -> None: ...


async def stream(client: EngineClient, request: Request) -> AsyncIterator[Event]:
    """Submit a request and yield its events on the running loop. Failed is raised as its StolonError.

    Leaving the iteration early (break, cancellation, an exception) aborts the request.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event] = asyncio.Queue()
    client.submit(request, lambda event: _post(loop, queue, event))
    open_samples = request.n
    finished = False
    try:
        while open_samples:
            event = await queue.get()
            if isinstance(event, Failed):
                finished = True
                raise event.error()
            open_samples -= isinstance(event, SampleDone)
            finished = not open_samples
            yield event
    finally:
        if not finished:
            client.abort(request.rid)


def _post(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Event], event: Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, event)
