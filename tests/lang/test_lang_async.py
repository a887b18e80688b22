"""Async programs, and programs inside running event loops."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InternalError, InvalidRequest
from stolon.lang.latch import Latch


@sl.function
async def chain(s, word="w"):
    s += word + ":" + sl.gen("a")
    first = await s.aget("a")
    s += f" {first} " + sl.gen_int("n")
    forks = s.fork(2)
    forks += sl.gen("v")
    values = await asyncio.gather(*(f.aget("v") for f in forks))
    return first, await s.avalue("n"), values


ANSWERS = {"a": "A", "n": "7", "v": "V"}


def test_runs_the_same_from_sync_and_async_code() -> None:
    engine = FakeEngine(ANSWERS)
    state = chain.run(backend=engine, seed=1)
    assert state.ret_value == ("A", 7, ["V", "V"])
    assert state.text() == "w:A A 7"

    async def main() -> None:
        state = await chain.arun("x", backend=engine, seed=1)
        assert state.ret_value == ("A", 7, ["V", "V"])
        assert state["a"] == "A"  # finished: reading needs no await
        assert (await chain("y", backend=engine)).text() == "y:A A 7"

    asyncio.run(main())


def test_run_works_inside_a_running_loop() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a")
        return s["a"]

    async def notebook() -> None:
        engine = FakeEngine()
        assert program.run(backend=engine).ret_value == "ok"
        assert chain.run(backend=FakeEngine(ANSWERS)).ret_value[0] == "A"

    asyncio.run(notebook())


def test_arun_of_a_sync_program_runs_beside_the_loop() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    @sl.function
    def program(s, i):
        s += f"{i}" + sl.gen("a")
        return s["a"] + variable.get()

    async def main() -> None:
        variable.set("!")
        engine = FakeEngine(together=100)
        states = await asyncio.gather(*(program.arun(i, backend=engine) for i in range(100)))
        assert [s.ret_value for s in states] == ["ok!"] * 100

    asyncio.run(main())


def test_a_blocking_read_is_refused_whatever_the_timing() -> None:
    @sl.function
    async def program(s):
        s += sl.gen("a") + sl.gen("b")
        await s.aget("b")
        with pytest.raises(InvalidRequest, match=r"await s\.aget\('a'\)"):
            s["a"]  # it is there by now, but nobody has awaited it
        with pytest.raises(InvalidRequest, match="async_sync"):
            s.text()
        with pytest.raises(InvalidRequest, match="text_async_iter"):
            list(s.text_iter("a"))
        await s.async_sync()
        assert s["a"] == "ok"
        assert s.text() == "okok"
        assert s.get_meta_info("b")["completion_tokens"] == 2

    program.run(backend=FakeEngine())

    async def main() -> None:
        await program.arun(backend=FakeEngine())

    asyncio.run(main())


def test_async_programs_inline_with_await_and_only_there() -> None:
    @sl.function
    async def inner(s):
        s += sl.gen("a")
        return await s.aget("a")

    @sl.function
    async def outer(s):
        return await inner(s)

    @sl.function
    def wrong(s):
        inner(s)

    assert outer.run(backend=FakeEngine()).ret_value == "ok"
    with pytest.raises(InvalidRequest, match="async program"):
        wrong.run(backend=FakeEngine())


def test_a_coroutine_appended_by_mistake_is_named() -> None:
    @sl.function
    async def inner(s): ...

    @sl.function
    async def outer(s):
        s += inner(s)

    with pytest.raises(InvalidRequest, match="await"):
        outer.run(backend=FakeEngine())


@pytest.mark.parametrize("is_async", [True, False])
def test_cancelling_arun_aborts_its_requests(is_async: bool) -> None:
    if is_async:

        @sl.function
        async def program(s):
            s += sl.gen("a")
            await s.aget("a")
    else:

        @sl.function
        def program(s):
            s += sl.gen("a")
            s["a"]

    async def main() -> None:
        engine = FakeEngine()
        engine.gate.clear()
        task = asyncio.create_task(program.arun(backend=engine))
        while not engine.received:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.received[0].aborted.wait(1)
        engine.gate.set()

    asyncio.run(main())


def test_a_cancelled_program_that_fails_leaves_no_error_behind() -> None:
    ends = threading.Event()

    @sl.function
    def program(s):
        ends.wait(5)
        raise ValueError("later")

    noise: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: noise.append(found))
        task = asyncio.create_task(program.arun(backend=FakeEngine()))
        await asyncio.sleep(0.01)
        threads = [t for t in threading.enumerate() if t.name == "stolon-program"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ends.set()
        for thread in threads:
            thread.join(5)
        await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(main())
    gc.collect()
    assert not noise


def test_cancelling_one_read_leaves_the_generation() -> None:
    @sl.function
    async def program(s):
        s += sl.gen("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(s.aget("a"), 0.01)
        engine.gate.set()
        return await s.aget("a")

    engine = FakeEngine()
    engine.gate.clear()
    assert program.run(backend=engine).ret_value == "ok"


def test_errors_reach_the_awaiting_read() -> None:
    @sl.function
    async def program(s):
        s += sl.gen("bad")
        with pytest.raises(InternalError, match="boom"):
            await s.aget("bad")
        with pytest.raises(KeyError):
            await s.aget("none")

    program.run(backend=FakeEngine({"bad": InternalError("boom")}))


def test_async_batch() -> None:
    async def one(s: sl.ProgramState, i: int) -> int:
        s += f"{i}" + sl.gen("a")
        await s.aget("a")
        return i

    program = sl.function(one)
    states = program.run_batch([{"i": i} for i in range(100)], backend=FakeEngine())
    assert [s.ret_value for s in states] == list(range(100))


def test_a_task_group_of_branches_frees_the_work_of_those_it_cancels() -> None:
    @sl.function
    async def program(s):
        s += "x" + sl.gen("first")
        await s.aget("first")
        engine.gate.clear()

        async def one(branch: sl.ProgramState, name: str) -> None:
            async with branch:
                branch += sl.gen(name)
                await branch.aget(name)

        async def together() -> None:
            async with asyncio.TaskGroup() as group:
                for branch, name in zip(s.fork(2), ("slow", "slower"), strict=True):
                    group.create_task(one(branch, name))
                await asyncio.sleep(0.01)
                group.create_task(fails())

        with pytest.raises(ExceptionGroup) as error:
            await together()
        assert isinstance(error.value.exceptions[0], ZeroDivisionError)
        assert engine.received_by("slow").aborted.is_set()  # at once: the program still runs
        engine.gate.set()
        s += sl.gen("after")
        return await s.aget("after")

    async def fails() -> None:
        raise ZeroDivisionError

    engine = FakeEngine()
    assert program.run(backend=engine).ret_value == "ok"
    assert [e.aborted.is_set() for e in engine.received] == [False, True, True, False]


def test_leaving_a_group_by_a_timeout_frees_its_work() -> None:
    @sl.function
    async def program(s):
        async def impatient() -> None:
            async with asyncio.timeout(0.02), s.fork(3) as forks:
                for branch in forks:
                    branch += sl.gen("v")
                await asyncio.gather(*(f.aget("v") for f in forks))

        engine.gate.clear()
        with pytest.raises(TimeoutError):
            await impatient()
        engine.gate.set()
        return [e.aborted.is_set() for e in engine.received]

    engine = FakeEngine()
    assert program.run(backend=engine).ret_value == [True] * 3


def test_a_state_is_read_in_another_loop_than_its_programs() -> None:
    @sl.function
    async def program(s):
        s += sl.gen("a")
        await s.aget("a")

    async def reader() -> str:
        return await state.aget("a")

    engine = FakeEngine()
    engine.gate.clear()
    state = program.run(backend=engine, stream=True)
    threading.Timer(0.02, engine.gate.set).start()
    assert asyncio.run(reader()) == "ok"


def test_thousands_of_live_states_take_no_threads() -> None:
    @sl.function
    async def program(s, i):
        s += f"{i}" + sl.gen("a")
        await s.aget("a")
        s += sl.gen("b")
        return await s.aget("b")

    async def main() -> None:
        engine.gate.clear()
        before = threading.active_count()
        tasks = [asyncio.create_task(program.arun(i, backend=engine)) for i in range(2000)]
        while len(engine.received) < 2000:
            await asyncio.sleep(0.01)
        assert threading.active_count() == before
        engine.gate.set()
        states = await asyncio.gather(*tasks)
        assert [state.ret_value for state in states] == ["ok"] * 2000

    engine = FakeEngine()
    asyncio.run(main())
    assert len(engine.requests) == 4000


def test_a_loop_is_woken_once_for_all_that_arrives() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        latches = [Latch() for _ in range(100)]
        waiting = [asyncio.create_task(latch.arrive()) for latch in latches]
        await asyncio.sleep(0)
        wakes = []
        call = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *a, **k: wakes.append(a) or call(*a, **k)  # type: ignore
        setter = threading.Thread(target=lambda: [latch.set() for latch in latches])
        setter.start()
        setter.join()  # the loop can't run in between
        del loop.call_soon_threadsafe
        await asyncio.gather(*waiting)
        assert len(wakes) == 1

    asyncio.run(main())
