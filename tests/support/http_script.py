"""A client of HTTP whose server answers from a script."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from support.canned_http import Canned, Handler

from stolon.lang.backends.http import HTTPClient, HTTPOptions, Retries


class Script:
    """Answers one after another: a Response, or an exception to raise."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def ask(
    script: Handler, *, count: int = 3, first_wait: float = 0.001, body: Any = None, **options: Any
) -> Any:
    """The JSON that a client has for one request, which it sends `count` times more if it must."""

    async def go() -> Any:
        http = HTTPClient(
            "http://host/base/",
            HTTPOptions(
                transport=lambda: Canned(script),
                retries=Retries(count=count, first_wait=first_wait, longest_wait=0.5),
                **options,
            ),
        )
        try:
            return await http.json("POST", "/x", body)
        finally:
            await http.aclose()

    return asyncio.run(go())


def ok(**fields: Any) -> httpx.Response:
    return httpx.Response(200, json=fields)
