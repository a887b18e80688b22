"""What the language costs beside the engine: per block, per fork, per state, and per engine step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import Any

from stolon.benchmarks.instant import InstantEngine
from stolon.benchmarks.machine import machine
from stolon.errors import InvalidRequest
from stolon.lang import Function, ProgramState, function, gen
from stolon.srt import Engine
from stolon.srt.client import EngineClient, EngineStats
from stolon.srt.protocol import Event as EngineEvent
from stolon.srt.protocol import Failed, Request, SampleDone
from stolon.srt.tokenizer import Tokenizer

__all__ = ["LanguagePlan", "measure_language"]

BLOCKS = 1000
HISTORY = 100
"""Generations, with a literal before each, that a branch has said before it forks."""
PREFIX_TOKENS = 2000
_TEXT = "The old lighthouse keeper wrote every ship that passed into a book. "


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePlan:
    """What to measure.

    Attributes:
        model: path of the model file.
        peers, pythons: must be empty; there is nothing to compare with.
        threads: CPU threads of the engine.
        states: programs that generate at the same time.
        branches: of the wide fork.
        new_tokens: tokens that each state generates.
        repeats: the best of this many counts.
    """

    model: Path
    peers: tuple[str, ...] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    states: int = 1000
    branches: int = 1000
    new_tokens: int = 24
    repeats: int = 3

    def __post_init__(self) -> None:
        if self.peers:
            raise InvalidRequest("the language benchmark compares with no peers", param="peers")

    @classmethod
    def quick(cls, **fields: Any) -> LanguagePlan:
        """A short run: fewer tokens, measured once. For a look, not for a claim."""
        return cls(states=200, repeats=1, **fields)


def measure_language(plan: LanguagePlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the plan; returns plain data."""
    tokens = plan.states * (plan.new_tokens + 16)
    with Engine(
        plan.model,
        threads=plan.threads,
        max_running=plan.states,
        step_tokens=max(512, 8 * plan.states),  # so that all states are soon under way
        kv_tokens=max(tokens, 4 * PREFIX_TOKENS + 16 * plan.branches),
    ) as engine:
        return measured_on(engine, plan, say)


def measured_on(engine: Engine, plan: LanguagePlan, say: Callable[[str], None]) -> dict[str, Any]:
    """`measure_language` on an engine that is there."""
    tokenizer = engine.tokenizer
    say("blocks and forks")
    measures: dict[str, Callable[[], float]] = {
        "block_seconds": partial(_block_seconds, _talk, tokenizer),
        "async_block_seconds": partial(_block_seconds, _talk_async, tokenizer),
        "fork_seconds": partial(_fork_seconds, plan.branches, tokenizer),
    }
    found = {
        label: min(measure() for _ in range(plan.repeats)) for label, measure in measures.items()
    }
    say(f"{plan.states} states")
    found |= _steps(engine, plan)
    say(f"{plan.branches} branches of one prefix")
    found |= _prefix(engine, plan)
    return {
        "machine": machine(),
        "model": plan.model.stem,
        "states": plan.states,
        "branches": plan.branches,
        "repeats": plan.repeats,
        "language": found,
    }


# -- beside an engine that takes no time ---------------------------------------------------------


@function
def _talk(s: ProgramState) -> None:
    for _ in range(BLOCKS):
        s += "line " + gen("x", max_tokens=5)
        s.get_var("x")


@function
async def _talk_async(s: ProgramState) -> None:
    for _ in range(BLOCKS):
        s += "line " + gen("x", max_tokens=5)
        await s.aget("x")


def _block_seconds(program: Function, tokenizer: Tokenizer) -> float:
    """One block: a literal, a generation and its read, without the engine's own time."""
    engine = InstantEngine(tokenizer)
    begun = time.perf_counter()
    program.run(backend=engine)
    return (time.perf_counter() - begun - engine.seconds) / BLOCKS


@function
def _forking(s: ProgramState, branches: int) -> float:
    for index in range(HISTORY):
        s += f"line {index}" + gen("x")
        s.set_var(f"v{index}", index)
    s.get_var("x")
    begun = time.perf_counter()
    s.fork(branches)
    return (time.perf_counter() - begun) / branches


def _fork_seconds(branches: int, tokenizer: Tokenizer) -> float:
    seconds: float = _forking.run(branches, backend=InstantEngine(tokenizer)).ret_value
    return seconds


# -- beside a model ------------------------------------------------------------------------------


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


def _steps(engine: Engine, plan: LanguagePlan) -> dict[str, float]:
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


def _prefix(engine: Engine, plan: LanguagePlan) -> dict[str, float]:
    """A wide fork after a long text: how often a token of the text was computed."""
    length = len(engine.tokenizer.encode(_TEXT * 10)) / 10
    text = _TEXT * int(PREFIX_TOKENS / length)
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
