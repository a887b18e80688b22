"""The shapes of Ollama's own API: ``/api/chat`` for messages, ``/api/generate`` for text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from stolon.errors import BackendError
from stolon.lang.backends.answers import Answer, Counts
from stolon.lang.backends.dialect import Dialect
from stolon.lang.backends.dialects_body import generation_fields
from stolon.lang.backends.http_errors import printable
from stolon.lang.backends.openai_wire import TokenEntry, finish, share
from stolon.srt.protocol import Gen

MAX_LINE_BYTES = 16 << 20


class _Message(msgspec.Struct):
    content: str = ""


class Reply(msgspec.Struct):
    """A whole answer, or one line of a stream."""

    message: _Message | None = None
    response: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    logprobs: list[TokenEntry] | None = None
    error: str | None = None

    def lacks(self, _: int) -> str | None:
        """What a whole answer has, and this one has not. None if it is complete."""
        if self.message is None and self.response is None:
            return "message or response"
        return None if self.done else "done: true"


def fields(gen: Gen, row: Dialect, sample: int) -> dict[str, Any]:
    """Fields of a generation; how it is sampled stands in ``options``."""
    flat = generation_fields(gen, row, "chat", sample=sample)
    nested = {*row.sampling.values(), *row.fixed, row.max_tokens}
    options = {name: flat.pop(name) for name in list(flat) if name in nested}
    return flat | {"options": options}


def take(payload: Reply, answers: Sequence[Answer], *, server: str) -> list[int]:
    """Add what came to the only answer."""
    if payload.error is not None:
        raise BackendError(f"{server} failed: {printable(payload.error)}")
    (answer,) = answers
    text = payload.message.content if payload.message else payload.response or ""
    answer.add(text, [entry.reported() for entry in payload.logprobs or ()])
    if payload.done:
        answer.ended = True
        answer.finish = finish(payload.done_reason or "stop", server, None)
        counts = Counts(prompt=payload.prompt_eval_count or 0, completion=payload.eval_count or 0)
        share(counts, answers)
    return [0]


async def lines(chunks: AsyncIterator[bytes], *, server: str) -> AsyncIterator[bytes]:
    """The lines of a stream, each a JSON object. Raises BackendError for one that is too long."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        *whole, tail = rest.split(b"\n")
        rest = bytearray(tail)
        for line in whole:
            if line.strip():
                yield bytes(line)
        if len(rest) > MAX_LINE_BYTES:
            raise BackendError(f"{server} sent a line of more than {MAX_LINE_BYTES} bytes")
    if rest.strip():
        yield bytes(rest)
