"""How many programs run at once on an engine whose cache holds few of them: promises of `concurrency="auto"`.

Steps of the engine stand for time: they can be compared on any machine.
"""

from __future__ import annotations

from typing import Literal

import pytest
from support.engines import hash_engine

import stolon as sl
from stolon.srt.client import EngineStats

TURNS, NEW = 5, 8


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """These engines take no time for a step, so the batch looks at them more often."""
    monkeypatch.setattr("stolon.lang.concurrency._INTERVAL", 0.01)


@sl.function
async def once(s: sl.ProgramState, name: str) -> None:
    s += name + sl.gen("out", max_tokens=20, ignore_eos=True, temperature=0)
    await s.aget("out")


@sl.function
async def turns(s: sl.ProgramState, name: str) -> None:
    s += name
    for turn in range(TURNS):
        s += f" {turn}:" + sl.gen(f"out{turn}", max_tokens=NEW, ignore_eos=True, temperature=0)
        await s.aget(f"out{turn}")


def run(
    program: sl.Function, items: int, concurrency: int | Literal["auto"], *, slots: int
) -> EngineStats:
    """The engine's counters after a batch of programs that share nothing."""
    with hash_engine(num_slots=slots, context=256) as engine:
        names = [f"{i:04d} is the number of this one." for i in range(items)]
        program.run_batch(
            [{"name": name} for name in names], backend=engine, seed=1, concurrency=concurrency
        )
        engine.check_integrity()
        return engine.stats()


def test_short_items_keep_a_small_engine_busy() -> None:
    auto, many = run(once, 600, "auto", slots=400), run(once, 200, 64, slots=400)
    assert auto.retractions < 600 / 4
    assert auto.computed_tokens == auto.prompt_tokens - auto.cached_tokens  # nothing twice
    assert auto.steps < 1.15 * 3 * many.steps


def test_programs_of_several_requests_do_not_drive_each_other_out_of_the_cache() -> None:
    auto = run(turns, 300, "auto", slots=600)
    fitting, many = run(turns, 100, 5, slots=600), run(turns, 100, 64, slots=600)
    assert many.computed_tokens > 3 * fitting.computed_tokens  # what it would come to
    assert auto.computed_tokens < 3 * 2.2 * fitting.computed_tokens
    assert auto.steps < 3 * fitting.steps
