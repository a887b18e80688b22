"""A server of another project without the server: answers are given as data, requests are kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from stolon.lang.backends.http import HTTPOptions, Retries

WIRE = Path(__file__).parent.parent / "lang" / "wire"


@dataclass(frozen=True)
class Status:
    """An answer of another status."""

    code: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


Answer = dict[str, Any] | list[str] | Status
"""A JSON body, the events or lines of a stream, or another status."""


def wire(name: str) -> Any:
    """A recorded shape."""
    return json.loads((WIRE / f"{name}.json").read_text(encoding="utf-8"))


class Lines(httpx.AsyncByteStream):
    """A body in pieces of `size` bytes."""

    def __init__(self, lines: list[str], size: int, end: str) -> None:
        self.data = "".join(line + end for line in lines).encode()
        self.size = size
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.data), self.size):
            yield self.data[at : at + self.size]

    async def aclose(self) -> None:
        self.closed = True


class WireServer:
    """Answers requests by path with what `answers` says: data, or a function of the body.

    Attributes:
        requests: (path, body) of each POST so far.
    """

    def __init__(
        self, answers: dict[str, Answer | Callable[[Any], Answer]], *, chunk: int = 7
    ) -> None:
        self.answers = answers
        self.chunk = chunk
        self.requests: list[tuple[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.streams: list[Lines] = []

    @property
    def bodies(self) -> list[Any]:
        return [body for _, body in self.requests]

    def options(self, **options: Any) -> HTTPOptions:
        return HTTPOptions(
            transport=lambda: httpx.MockTransport(self._handle),
            retries=Retries(count=2, first_wait=0.0),
            **options,
        )

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content) if request.content else None
        if request.method == "POST":
            self.requests.append((path, body))
            self.headers.append(request.headers)
        answer = self.answers.get(path)
        if callable(answer):
            answer = answer(body)
        if answer is None:
            answer = Status(404, {"detail": "Not Found"})
        status, headers = 200, {}
        if isinstance(answer, Status):
            status, headers, answer = answer.code, answer.headers, answer.body
        end = "\n" if path.startswith("/api/") else "\n\n"
        lines = answer if isinstance(answer, list) else [json.dumps(answer)]
        stream = Lines(lines, self.chunk, end)
        self.streams.append(stream)
        return httpx.Response(status, headers=headers, stream=stream)
