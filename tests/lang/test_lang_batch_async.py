"""arun_batch: one object that is awaited or iterated over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InternalError, InvalidRequest


@sl.function
async def echo(s, i):
    s += f"{i}:" + sl.gen("a")
    await s.aget("a")
    return i


@sl.function
def blocking(s, i):
    s += f"{i}:" + sl.gen("a")
    s["a"]
    return i


@pytest.mark.parametrize("program", [echo, blocking])
def test_awaiting_gives_the_list(program: sl.Function) -> None:
    async def main() -> list[int]:
        states = await program.arun_batch([(i,) for i in range(30)], backend=FakeEngine(), seed=1)
        return [state.ret_value for state in states]

    assert asyncio.run(main()) == list(range(30))


def test_the_seeds_are_those_of_run_batch() -> None:
    async def main() -> list[int]:
        states = await echo.arun_batch([(0,), (1,)], backend=FakeEngine(), seed=5)
        return [state.seed for state in states]

    states = echo.run_batch([(0,), (1,)], backend=FakeEngine(), seed=5)
    assert asyncio.run(main()) == [state.seed for state in states]


@pytest.mark.parametrize("program", [echo, blocking])
def test_iterating_gives_pairs_in_order_from_any_iterable(program: sl.Function) -> None:
    async def items() -> AsyncIterator[tuple[int]]:
        for i in range(20):
            await asyncio.sleep(0)
            yield (i,)

    async def main() -> None:
        for batch in (items(), ((i,) for i in range(20)), [(i,) for i in range(20)]):
            found = [
                (index, state.ret_value)
                async for index, state in program.arun_batch(
                    batch, backend=FakeEngine(), concurrency=3
                )
            ]
            assert found == [(i, i) for i in range(20)]
        async for _ in program.arun_batch([], backend=FakeEngine()):
            raise AssertionError("nothing was asked for")

    asyncio.run(main())


def test_results_come_while_the_items_are_awaited() -> None:
    async def main() -> None:
        more = asyncio.Event()

        async def items() -> AsyncIterator[tuple[int]]:
            yield (0,)
            await more.wait()
            yield (1,)

        found = []
        async with asyncio.timeout(5):
            async for index, _ in echo.arun_batch(items(), backend=FakeEngine()):
                found.append(index)
                more.set()
        assert found == [0, 1]

    asyncio.run(main())


def test_a_slow_consumer_holds_the_items_back() -> None:
    pulled = 0

    async def main() -> None:
        nonlocal pulled

        def items():
            nonlocal pulled
            for i in range(50):
                pulled += 1
                yield (i,)

        handed = 0
        async for _ in echo.arun_batch(
            items(), backend=FakeEngine(), concurrency=4, as_completed=True
        ):
            handed += 1
            await asyncio.sleep(0.001)
            assert pulled <= handed + 4
        assert handed == 50

    asyncio.run(main())


def test_ten_thousand_items_of_an_async_program_take_no_threads() -> None:
    most = 0

    @sl.function
    async def program(s, i):
        nonlocal most
        most = max(most, threading.active_count())
        return i

    before = threading.active_count()
    begin = time.monotonic()
    states = program.run_batch(((i,) for i in range(10_000)), backend=FakeEngine(), concurrency=500)
    assert [state.ret_value for state in states] == list(range(10_000))
    assert most <= before + 3
    assert time.monotonic() - begin < 15


def test_failures_are_raised_or_handed_over() -> None:
    engine = FakeEngine({"a": InternalError("boom")})

    async def main() -> None:
        with pytest.raises(InternalError, match="item 0 of the batch") as error:
            await echo.arun_batch([(0,)], backend=engine)
        assert error.value.results == [error.value]  # type: ignore[attr-defined]
        with pytest.raises(InternalError, match="item 0 of the batch"):
            await anext(aiter(echo.arun_batch([(0,)], backend=engine)))
        (result,) = await echo.arun_batch([(0,)], backend=engine, return_exceptions=True)
        assert isinstance(result, InternalError)

    asyncio.run(main())


@pytest.mark.parametrize("program", [echo, blocking])
def test_cancelling_aborts_what_runs(program: sl.Function) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def main() -> None:
        async def run() -> object:
            return await program.arun_batch([(i,) for i in range(3)], backend=engine)

        task = asyncio.create_task(run())
        while len(engine.received) < 3:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(entry.aborted.wait(1) for entry in engine.received)

    asyncio.run(main())
    engine.gate.set()


def test_leaving_the_iteration_aborts_the_rest() -> None:
    engine = FakeEngine({"a": lambda before, _: "ok" if before == "0:" else slow()})
    go = threading.Event()

    def slow() -> str:
        go.wait(5)
        return "late"

    async def main() -> None:
        results = echo.arun_batch([(i,) for i in range(4)], backend=engine).__aiter__()
        index, _ = await anext(results)
        assert index == 0
        await results.aclose()  # type: ignore[attr-defined]
        assert all(entry.aborted.wait(1) for entry in engine.received[1:])

    asyncio.run(main())
    go.set()


def test_it_runs_once_and_refuses_what_it_does_not_take() -> None:
    async def main() -> None:
        batch = echo.arun_batch([(0,)], backend=FakeEngine())
        await batch
        with pytest.raises(InvalidRequest, match="once"):
            await batch

    asyncio.run(main())
    with pytest.raises(TypeError, match=r"arun_batch\(\).* mean 'concurrency'\?"):
        echo.arun_batch([(0,)], backend=FakeEngine(), concurency=3)
    with pytest.raises(TypeError, match="generator_style"):
        echo.arun_batch([(0,)], backend=FakeEngine(), generator_style=True)


def test_a_batch_inside_an_async_program() -> None:
    @sl.function
    async def outer(s):
        return [state.ret_value for state in await echo.arun_batch([(1,), (2,)], backend=engine)]

    engine = FakeEngine()
    assert outer.run(backend=engine).ret_value == [1, 2]


@pytest.mark.parametrize("places", [1, 2, 3])
def test_few_places_are_filled_again_as_they_become_free(places: int) -> None:
    @sl.function
    def program(s, i):
        s += f"{i}" + sl.gen("a")
        return i

    async def main() -> list[int]:
        items = [(i,) for i in range(12)]
        batch = program.arun_batch(items, num_threads=places, backend=FakeEngine())
        async with asyncio.timeout(10):
            return [state.ret_value for state in await batch]

    assert asyncio.run(main()) == list(range(12))
