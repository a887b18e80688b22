"""Programs with what is constant in them computed early: the beginning, the grammars, the tokens."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stolon.errors import InvalidRequest, StolonError
from stolon.lang.plan import Generation, Literal, Plan, PlannedBlock, Segment
from stolon.lang.runtime_loop import refuse_on_loop, runtime_loop
from stolon.srt.client import EngineClient, stream
from stolon.srt.protocol import Gen, GrammarSpec, Request, SampleDone, Sampling, Text

if TYPE_CHECKING:
    from stolon.lang.batch_drivers import AsyncBatch
    from stolon.lang.program import Function
    from stolon.lang.state import ProgramState

_NOTHING = Sampling(max_tokens=0)
_TAIL_CHARS = 64  # more than a token that a generation may begin anew


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The constant text that every run of a program begins with.

    Attributes:
        tokens: how many it has; 0 if there is none.
        cached: how many of them the engine had computed before.
    """

    tokens: int = 0
    cached: int = 0

    @property
    def computed(self) -> int:
        """How many were computed now."""
        return self.tokens - self.cached


class CompiledFunction:
    """A program prepared for one engine. Its runs are those of the program: the same seed gives the same
    text, only sooner.

    Attributes:
        function: the program.
        backend: the engine that it is prepared for.
        plan: what is known of it before it runs.
        prefix: the constant beginning as it was computed; None for a backend that keeps nothing between
            requests which a program could prepare.
    """

    def __init__(self, function: Function, backend: EngineClient, plan: Plan) -> None:
        self.function = function
        self.backend = backend
        self.plan = plan
        self.prefix = prepare(plan, backend) if keeps_prefixes(backend) else None

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """`Function.run`."""
        return self.function.run(*args, **self._with_backend(kwargs))

    async def arun(self, *args: Any, **kwargs: Any) -> ProgramState:
        """`Function.arun`."""
        return await self.function.arun(*args, **self._with_backend(kwargs))

    def run_batch(self, batch_kwargs: Iterable[Any], **kwargs: Any) -> Any:
        """`Function.run_batch`."""
        return self.function.run_batch(batch_kwargs, **self._with_backend(kwargs))

    def arun_batch(
        self, batch_kwargs: Iterable[Any] | AsyncIterable[Any], **kwargs: Any
    ) -> AsyncBatch:
        """`Function.arun_batch`."""
        return self.function.arun_batch(batch_kwargs, **self._with_backend(kwargs))

    def print_graph(self) -> None:
        """Print the plan."""
        self.plan.print_graph()

    def _with_backend(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"backend": self.backend} | {k: v for k, v in kwargs.items() if k != "backend" or v}

    def __repr__(self) -> str:
        return f"<compiled {self.function!r} for {self.backend.info.name}>"


def keeps_prefixes(backend: EngineClient) -> bool:
    """Whether the backend has a cache of its own that a request without generation fills."""
    return backend.info.kv_slots > 0


def cache_prefix(plan: Plan, backend: EngineClient) -> CachedPrefix:
    """Compute the constant beginning. Raises InvalidRequest for a backend that can't keep it."""
    if not keeps_prefixes(backend):
        raise InvalidRequest(
            f"{backend.info.name} keeps no prefix that a program could compute early",
            param="backend",
            hint="its own cache of prefixes, if it has one, works without",
        )
    return _wait(_compute(plan.prefix, backend))


def prepare(plan: Plan, backend: EngineClient) -> CachedPrefix:
    """Compute the constant beginning and compile the grammars, at the same time.

    Raises the refusal of a grammar, with the line of the program that asks for it.
    """

    async def together() -> CachedPrefix:
        grammars = [_compile(backend, *wanted) for wanted in _grammars(plan)]
        prefix, _ = await asyncio.gather(_compute(plan.prefix, backend), asyncio.gather(*grammars))
        return prefix

    return _wait(together())


def _wait(work: Coroutine[Any, Any, CachedPrefix]) -> CachedPrefix:
    try:
        refuse_on_loop("preparing a program")
    except StolonError:
        work.close()
        raise
    return runtime_loop().submit(work).result()


async def _compute(prefix: Iterable[Text], backend: EngineClient) -> CachedPrefix:
    segments = list(prefix)
    if not segments:
        return CachedPrefix()
    done = await _ask(backend, [*segments, Gen(sampling=_NOTHING)])
    return CachedPrefix(done.prompt_tokens, done.cached_tokens)


async def _compile(backend: EngineClient, generation: Generation, before: str) -> None:
    gen = Gen(grammar=generation.grammar, heal=generation.heal, sampling=_NOTHING)
    try:
        await _ask(backend, [Text(before), gen])
    except StolonError as error:
        error.where = f"{generation.where}: {error.where}" if error.where else generation.where
        raise


async def _ask(backend: EngineClient, segments: list[Any]) -> SampleDone:
    """A request that generates nothing."""
    request = Request(rid=f"prepare-{secrets.token_hex(6)}", segments=segments)
    done: SampleDone | None = None
    async for event in stream(backend, request):
        if isinstance(event, SampleDone):
            done = event
    assert done is not None
    return done


def _grammars(plan: Plan) -> Iterator[tuple[Generation, str]]:
    """Each grammar once, with a text before it whose end is that of the literal before it."""
    seen: set[tuple[GrammarSpec, str]] = set()
    for block in plan.blocks:
        for generation, before in _with_text_before(block):
            if generation.grammar is None:
                continue
            key = (generation.grammar, before)
            if key not in seen:
                seen.add(key)
                yield generation, before


def _with_text_before(block: PlannedBlock) -> Iterator[tuple[Generation, str]]:
    before: Segment | None = None
    for segment in block.segments:
        if isinstance(segment, Generation):
            text = "."
            if isinstance(before, Literal) and segment.heal:
                text = before.text[-_TAIL_CHARS:]
            yield segment, text
        before = segment
