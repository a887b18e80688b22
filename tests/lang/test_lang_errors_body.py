"""What a body raises goes out as it is, ends the rest of its run, and nothing else."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InternalError, InvalidRequest


def test_errors_of_the_body_go_out_as_they_are_and_abort_the_rest() -> None:
    @sl.function
    def program(s):
        forks = s.fork(2)
        forks += sl.gen("slow")
        s += sl.gen("a")
        s._branch.run.flush()
        raise ZeroDivisionError("mine")

    engine = FakeEngine(delay=0.2)
    engine.gate.clear()
    with pytest.raises(ZeroDivisionError, match="mine") as error:
        program.run(backend=engine)
    engine.gate.set()
    assert error.value.__notes__ == ["in the program 'program'"]
    assert all(entry.aborted.is_set() for entry in engine.received)


def test_recursion_without_end_is_an_error_that_leaks_nothing() -> None:
    @sl.function
    def inline(s):
        s += "x" + sl.gen("a")
        inline(s)

    @sl.function
    def nested(s, depth=0):
        s += "x" + sl.gen("a")
        s._branch.run.flush()
        nested.run(depth + 1, backend=engine)

    @sl.function
    async def awaited(s):
        await awaited.arun(backend=engine)

    engine = FakeEngine()
    engine.gate.clear()
    with pytest.raises(RecursionError) as error:
        inline.run(backend=engine)
    assert error.value.__notes__ == ["in the program 'inline'"]
    for program in (nested, awaited):
        with pytest.raises(InvalidRequest, match="inside 64 other runs") as refused:
            program.run(backend=engine)
        assert "without end" in str(refused.value)
        assert refused.value.__notes__ == [f"in the program {program.name!r}"]
    engine.gate.set()
    assert len(engine.received) == 64
    assert all(entry.aborted.wait(1) for entry in engine.received)


def test_ctrl_c_ends_a_waiting_program_at_once() -> None:
    @sl.function
    def program(s):
        s += "x" + sl.gen("fine")
        assert s["fine"] == "ok"
        engine.gate.clear()
        s += sl.gen("slow")
        main = threading.main_thread().ident
        threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
        s["slow"]

    engine = FakeEngine()
    with pytest.raises(KeyboardInterrupt) as error:
        program.run(backend=engine)
    assert engine.received_by("slow").aborted.is_set()
    engine.gate.set()
    assert error.value.state["fine"] == "ok"  # type: ignore[attr-defined]


def test_a_body_that_swallows_errors_ends_all_the_same() -> None:
    @sl.function
    def program(s):
        for i in range(3):
            try:
                s += sl.gen(f"v{i}")
                s[f"v{i}"]
            except BaseException:
                continue
        return "done"

    engine = FakeEngine({"v1": InternalError("boom")})
    state = program.run(backend=engine)
    assert state.ret_value == "done"
    assert state["v0"] == "ok"
    assert isinstance(state.error(), InternalError)
    with pytest.raises(InternalError):
        state["v2"]


def raising(error: BaseException, how: str) -> sl.Function:
    def body(s, i=0):
        raise error

    async def coroutine(s, i=0):
        raise error

    async def in_a_task(s, i=0):
        async def task():
            raise error

        await asyncio.create_task(task())

    return sl.function({"def": body, "async": coroutine, "task": in_a_task}[how])


@pytest.mark.parametrize("how", ["def", "async", "task"])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_of_a_body_reaches_the_caller_and_ends_no_other_run(
    kind: type[BaseException], how: str
) -> None:
    engine = FakeEngine({"a": "A"})

    @sl.function
    async def other(s):
        s += "x" + sl.gen("a")
        return await s.aget("a")

    calls: list[Callable[[sl.Function], object]] = [
        lambda program: program.run(backend=engine),
        lambda program: program.run_batch([{}], backend=engine),
        lambda program: program.run(backend=engine, stream=True).text(),
    ]
    for call in calls:
        with pytest.raises(kind):
            call(raising(kind(), how))
        assert other.run(backend=engine).ret_value == "A"


@pytest.mark.parametrize("how", ["def", "async"])
def test_a_stop_iteration_is_an_error_of_the_body(how: str) -> None:
    engine = FakeEngine()
    calls: list[Callable[[sl.Function], object]] = [
        lambda program: program.run(backend=engine),
        lambda program: asyncio.run(program.arun(backend=engine)),
        lambda program: program.run_batch([{}], backend=engine),
        lambda program: list(program.run_batch([{}], backend=engine, generator_style=True)),
        lambda program: list(program.run(backend=engine, stream=True).text_iter()),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            call(raising(StopIteration(), how))
