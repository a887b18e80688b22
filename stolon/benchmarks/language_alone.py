"""What the language costs by itself, beside an engine that takes no time. Times in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from stolon.benchmarks.instant import InstantEngine
from stolon.lang import Function, ProgramState, assistant, function, gen, user
from stolon.srt.tokenizer import ChatTemplate, Tokenizer

__all__ = ["costs_alone"]

BLOCKS = 1000
HISTORY = 100
"""Generations, with a literal before each, that a branch has said before it forks."""
TURNS = 60
"""Of a chat; the cost of the last ten counts."""


def costs_alone(
    tokenizer: Tokenizer, template: ChatTemplate | None, *, branches: int, repeats: int
) -> dict[str, float]:
    """Each cost, the best of `repeats`."""
    measures: Mapping[str, Callable[[], float]] = {
        "block_seconds": partial(_block_seconds, _talk, tokenizer),
        "async_block_seconds": partial(_block_seconds, _talk_async, tokenizer),
        "turn_seconds": partial(_turn_seconds, tokenizer, template),
        "fork_seconds": partial(_fork_seconds, branches, tokenizer),
    }
    return {label: min(measure() for _ in range(repeats)) for label, measure in measures.items()}


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


@function
def _chatting(s: ProgramState) -> float:
    begun = 0.0
    for turn in range(TURNS):
        if turn == TURNS - 10:
            begun = time.perf_counter()
        s += user(f"Is there more of number {turn}?") + assistant(gen("x", max_tokens=5))
        s.get_var("x")
    return (time.perf_counter() - begun) / 10


def _turn_seconds(tokenizer: Tokenizer, template: ChatTemplate | None) -> float:
    """A turn of a long chat in the model's template; the engine's own few microseconds are in it."""
    engine = InstantEngine(tokenizer)
    engine.chat_template = template
    seconds: float = _chatting.run(backend=engine).ret_value
    return seconds
