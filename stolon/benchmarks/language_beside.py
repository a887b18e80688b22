"""What the language costs and saves beside a model. Times in seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from operator import sub
from statistics import median
from threading import Event, Semaphore, Thread
from typing import TYPE_CHECKING, Any

from stolon.benchmarks.instant import InstantEngine
from stolon.lang import ProgramState, function, gen
from stolon.srt import Engine
from stolon.srt.client import EngineClient, EngineStats
from stolon.srt.protocol import Event as EngineEvent
from stolon.srt.protocol import Failed, Request, SampleDone

if TYPE_CHECKING:
    from stolon.benchmarks.language import LanguagePlan

__all__ = ["costs_of_compiling", "costs_of_prefix", "costs_of_steps"]

PREFIX_TOKENS = 2000
COMPILED_TOKENS = 1000
"""Of the prompt that a grammar is compiled beside."""
FIELDS = 150
"""Objects of six bounded numbers each in the schema, whose grammar takes a tenth of a second or two."""
_TEXT = "The old lighthouse keeper wrote every ship that passed into a book. "


@function
async def _state(s: ProgramState, index: int, tokens: int) -> None:
    s += f"Ship number {index} was" + gen("x", max_tokens=tokens, ignore_eos=True)
    await s.aget("x")


async def _all_states(engine: EngineClient, plan: LanguagePlan) -> None:
    runs = [
        _state.arun(index, plan.new_tokens, backend=engine, seed=index)
        for index in range(plan.states)
    ]
    await asyncio.gather(*runs)


def _bare(engine: EngineClient, requests: list[Request]) -> None:
    """The same requests without the language."""
    ended = Semaphore(0)

    def on_event(event: EngineEvent) -> None:
        if isinstance(event, SampleDone | Failed):
            ended.release()

    for request in requests:
        engine.submit(request, on_event)
    for _ in requests:
        ended.acquire()


def costs_of_steps(engine: Engine, plan: LanguagePlan) -> dict[str, float]:
    """Seconds of an engine step and of everything, with the language and without it."""
    recorded = InstantEngine(engine.tokenizer)
    asyncio.run(_all_states(recorded, plan))
    ways: dict[str, Callable[[], None]] = {
        "bare": lambda: _bare(engine, recorded.requests),
        "with": lambda: asyncio.run(_all_states(engine, plan)),
    }
    best: dict[str, float] = {}
    for _ in range(plan.repeats):
        for label, work in ways.items():
            engine.flush_cache()
            begun = time.perf_counter()
            step = _step_seconds(engine, plan.states, work)
            seconds = time.perf_counter() - begun
            for key, value in ((f"step_{label}", step), (f"wall_{label}", seconds)):
                best[key] = min(value, best.get(key, value))
    return best


def _step_seconds(engine: Engine, states: int, work: Callable[[], None]) -> float:
    """Of a step while all states run; of any step where they never all do."""
    full: list[EngineStats] = []
    over = Event()

    def watch() -> None:
        while not over.wait(0.005):
            now = engine.stats()
            if now.running == states:
                full.append(now)

    watcher = Thread(target=watch)
    before = engine.stats()
    watcher.start()
    work()
    over.set()
    watcher.join()
    first, last = before, engine.stats()
    if full and full[-1].steps > full[0].steps:
        first, last = full[0], full[-1]
    return (last.step_time - first.step_time) / (last.steps - first.steps)


@function
def _fan(s: ProgramState, text: str, branches: int) -> int:
    s += text + gen("first", max_tokens=1, ignore_eos=True)
    s.get_var("first")
    forks = s.fork(branches)
    forks += lambda index: f" {index}:" + gen("x", max_tokens=1, ignore_eos=True)
    return sum(branch.get_meta_info("x")["computed_tokens"] for branch in forks)


def costs_of_prefix(engine: Engine, plan: LanguagePlan) -> dict[str, float]:
    """A wide fork after a long text: how often a token of the text was computed."""
    text = _text_of(engine, PREFIX_TOKENS)
    engine.flush_cache()
    before, begun = engine.stats(), time.perf_counter()
    state = _fan.run(text, plan.branches, backend=engine, seed=1)
    seconds, after = time.perf_counter() - begun, engine.stats()
    prefix = state.get_meta_info("first")["prompt_tokens"]
    own = sum(len(engine.tokenizer.encode(f" {index}:")) + 1 for index in range(plan.branches))
    computed = after.computed_tokens - before.computed_tokens
    return {
        "prefix_tokens": prefix,
        "prefix_computed": max(computed - own, prefix) / prefix,
        "prefix_seconds": seconds,
    }


def _text_of(engine: Engine, tokens: int) -> str:
    length = len(engine.tokenizer.encode(_TEXT * 10)) / 10
    return _TEXT * int(tokens / length)


@function
def _answer(s: ProgramState, text: str, schema: Any) -> None:
    s += text + gen("x", max_tokens=1, schema=schema, temperature=0)


def costs_of_compiling(engine: Engine, plan: LanguagePlan) -> dict[str, float]:
    """A grammar that is compiled for the first time: alone, and while a long prompt is computed."""
    text = _text_of(engine, COMPILED_TOKENS)
    numbers = iter(range(1 << 30))

    def first_text(prompt: str, schema: Any) -> float:
        state = _answer.run(f"Note {next(numbers)}. {prompt}", schema, backend=engine, stream=True)
        state.sync()
        return state.trace.calls[0].first_text or 0.0

    times: dict[str, list[float]] = {}
    for _ in range(plan.repeats + 2):
        schema = _schema(next(numbers))
        for label, prompt, asked in (
            ("cold alone", "", schema),
            ("warm alone", "", schema),
            ("warm", text, schema),
            ("cold", text, _schema(next(numbers))),
        ):
            times.setdefault(label, []).append(first_text(prompt, asked))
    # Of pairs that follow each other: a small difference of long times, and the machine's speed changes.
    return {
        "compile_seconds": median(map(sub, times["cold alone"], times["warm alone"])),
        "compile_added": median(map(sub, times["cold"], times["warm"])),
    }


def _schema(number: int) -> dict[str, Any]:
    """One of many of the same size, of which no two are the same."""
    properties = {
        f"field_{i}": {
            "type": "object",
            "properties": {
                f"key_{i}_{j}": {"type": "integer", "minimum": i, "maximum": 1000 * i + j}
                for j in range(6)
            },
            "additionalProperties": False,
        }
        for i in range(FIELDS)
    }
    properties[f"last_{number}"] = {"type": "boolean"}
    return {"type": "object", "properties": properties, "additionalProperties": False}
