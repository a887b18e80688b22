"""Runs programs made of separate calls on one engine, many programs at once, and counts what they do.

It runs in the Python of each peer: standard library only. A peer's ``…_calls`` module has ``VARIANTS``,
names of settings to try, and a class ``Caller(worker, variant)`` with

- ``submit(call) -> key`` and ``step() -> [(key, texts, tokens), ...]``, the engine's own loop: calls join
  it as they come, `step` computes a while and returns what is finished;
- ``concurrency``, how many programs it likes at once (0: all), ``primed`` and ``settings``, for the table.

Calls that come at once may each compute what they share. A primed batch begins with one token of its
first call, and the others wait for it, so that they find what they share in the cache.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

PATIENCE = 4
"""Turns that programs get between two steps: enough for what follows from a result to be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a model.

    Attributes:
        prompt: text to continue, or messages for the model's chat template.
        max_tokens: without a constraint, exactly as many.
        like: the constraint of the text: ``choices``, ``regex`` with ``gbnf``, or ``schema``.
        n: samples.
    """

    prompt: str | list[dict[str, str]]
    max_tokens: int
    like: dict[str, Any] | None = None
    temperature: float = 0.0
    n: int = 1


class Model:
    """What a script calls: texts of an engine, until `deadline` (of `time.perf_counter`)."""

    def __init__(
        self, pump: Pump, constraints: dict[str, Any], deadline: float, *, primed: bool
    ) -> None:
        self._pump, self._constraints, self._deadline = pump, constraints, deadline
        self._primed = primed
        self._first: asyncio.Task[Any] | None = None
        self.texts = 0
        self.tokens = 0

    async def text(self, prompt: Any, max_tokens: int, *, like: str | None = None) -> str:
        """The greedy text, under the constraint of that name."""
        constraint = None if like is None else self._constraints[like]
        texts = await self._ask(Call(prompt=prompt, max_tokens=max_tokens, like=constraint))
        return texts[0]

    async def samples(
        self, prompt: Any, max_tokens: int, *, n: int, temperature: float
    ) -> list[str]:
        """`n` samples."""
        return await self._ask(
            Call(prompt=prompt, max_tokens=max_tokens, temperature=temperature, n=n)
        )

    async def _ask(self, call: Call) -> list[str]:
        if time.perf_counter() > self._deadline:
            raise TimeoutError("it took too long")
        if self._primed:
            if self._first is None:
                first = Call(prompt=call.prompt, max_tokens=1)
                self._first = asyncio.create_task(self._pump.complete(first))
            await self._first
        texts, tokens = await self._pump.complete(call)
        if call.like is None and tokens != call.n * call.max_tokens:
            raise RuntimeError(f"{tokens} tokens instead of {call.n} × {call.max_tokens}")
        self.texts += len(texts)
        self.tokens += tokens
        return list(texts)


class Pump:
    """Runs the steps of an engine as long as calls wait for it."""

    def __init__(self, caller: Any) -> None:
        self._caller = caller
        self._waiting: dict[Hashable, asyncio.Future[tuple[list[str], int]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def complete(self, call: Call) -> tuple[list[str], int]:
        future: asyncio.Future[tuple[list[str], int]] = asyncio.get_running_loop().create_future()
        self._waiting[self._caller.submit(call)] = future
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while True:
            for _ in range(PATIENCE):
                await asyncio.sleep(0)
            if not self._waiting:
                return
            try:
                for key, texts, tokens in self._caller.step():
                    self._waiting.pop(key).set_result((texts, tokens))
            except Exception as error:
                for future in self._waiting.values():
                    future.set_exception(error)
                self._waiting.clear()


def run(
    caller: Any,
    script: Callable[..., Any],
    items: list[dict[str, Any]],
    constraints: dict[str, Any],
    limit: float,
) -> dict[str, Any]:
    """Run a script on every item; seconds from the first call to the last result, and what was done.

    Raises what a script raised, TimeoutError after `limit` seconds.
    """
    return asyncio.run(_run(caller, script, items, constraints, limit))


async def _run(
    caller: Any,
    script: Callable[..., Any],
    items: list[dict[str, Any]],
    constraints: dict[str, Any],
    limit: float,
) -> dict[str, Any]:
    start = time.perf_counter()
    model = Model(Pump(caller), constraints, start + limit, primed=caller.primed)
    gate = asyncio.Semaphore(caller.concurrency or len(items))

    async def one(item: dict[str, Any]) -> Any:
        async with gate:
            return await script(model, **item)

    # All are waited for: an engine that is still at work would disturb the next one.
    results = await asyncio.gather(*map(one, items), return_exceptions=True)
    seconds = time.perf_counter() - start
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return {
        "seconds": seconds,
        "results": results,
        "texts": model.texts,
        "tokens": model.tokens,
    }
