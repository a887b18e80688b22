"""run_batch: order, concurrency, progress, failures, Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import Aborted, InternalError, InvalidRequest
from stolon.lang.concurrency import AUTO_LIMIT


@sl.function
def echo(s, i, scale=1):
    s += f"{i}:" + sl.gen("a")
    if s["a"] == "bad":
        raise ValueError(f"item {i}")
    return i * scale


def bad_at(*wrong: int) -> FakeEngine:
    def answer(before: str, _: object) -> str:
        return "bad" if int(before[:-1]) in wrong else "ok"

    return FakeEngine({"a": answer})


def test_results_are_in_order_for_dicts_tuples_and_generators() -> None:
    engine = FakeEngine(together=30)
    batch = [{"i": i} if i % 2 else (i, 10) for i in range(30)]
    states = echo.run_batch((item for item in batch), backend=engine)
    assert [s.ret_value for s in states] == [i if i % 2 else i * 10 for i in range(30)]
    assert echo.run_batch([], backend=engine) == []


def test_num_threads_bounds_what_runs_at_once() -> None:
    running = 0
    most = 0
    lock = threading.Lock()

    @sl.function
    def program(s, i):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        s += sl.gen("a")
        s["a"]
        with lock:
            running -= 1

    program.run_batch([(i,) for i in range(20)], num_threads=3, backend=FakeEngine(delay=0.002))
    assert most == 3
    with pytest.raises(InvalidRequest, match="num_threads"):
        program.run_batch([(1,)], num_threads=0, backend=FakeEngine())


def test_seeds_differ_per_item_and_repeat_with_the_batch() -> None:
    def seeds(seed: int) -> list[int]:
        return [s.seed for s in echo.run_batch([(1,), (1,)], seed=seed, backend=FakeEngine())]

    assert seeds(3) == seeds(3)
    assert len({*seeds(3), *seeds(4)}) == 4


def test_sampling_defaults_reach_the_items() -> None:
    engine = FakeEngine()
    echo.run_batch([(1,)], backend=engine, max_new_tokens=7, temperature=0)
    assert engine.gen("a").sampling.max_tokens == 7
    with pytest.raises(TypeError, match="tempreature"):
        echo.run_batch([(1,)], backend=engine, tempreature=0)


def test_the_first_failure_keeps_what_is_finished() -> None:
    with pytest.raises(ValueError, match="item 2") as error:
        echo.run_batch([(i,) for i in range(6)], num_threads=1, backend=bad_at(2))
    results = error.value.results  # type: ignore[attr-defined]
    assert [r.ret_value for r in results[:2]] == [0, 1]
    assert results[2] is error.value
    assert results[3:] == [None] * 3  # these never began
    assert "in item 2 of the batch" in error.value.__notes__


def test_failures_stand_in_the_list_on_request() -> None:
    results = echo.run_batch(
        [(i,) for i in range(6)] + [{"wrong": 1}, 5],
        backend=bad_at(1, 4),
        return_exceptions=True,
    )
    kinds = [type(r).__name__ for r in results]
    assert kinds[:6] == [
        "ProgramState",
        "ValueError",
        "ProgramState",
        "ProgramState",
        "ValueError",
        "ProgramState",
    ]
    assert kinds[6:] == ["TypeError", "InvalidRequest"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("is_async", [True, False])
def test_exits_of_a_body_never_stand_in_the_list(kind: type[BaseException], is_async: bool) -> None:
    engine = FakeEngine()

    def body(s, i):
        if i == 1:
            raise ValueError
        if i == 2:
            raise kind
        return i

    async def abody(s, i):
        return body(s, i)

    program = sl.function(abody if is_async else body)
    items = [(i,) for i in range(6)]
    options: dict[str, Any] = {"num_threads": 1, "backend": engine, "return_exceptions": True}

    async def gathered() -> list[Any]:
        return await program.arun_batch(items, **options)

    ways: list[Callable[[], object]] = [
        lambda: program.run_batch(items, **options),
        lambda: asyncio.run(gathered()),
    ]
    for way in ways:
        with pytest.raises(kind) as error:
            way()
        results = error.value.results  # type: ignore[attr-defined]
        assert results[0].ret_value == 0
        assert isinstance(results[1], ValueError)
        assert results[2:] == [error.value, None, None, None]
    stream = program.run_batch(items, as_completed=True, **options)
    assert [next(stream)[0] for _ in range(2)] == [0, 1]
    with pytest.raises(kind):
        next(stream)


def test_failures_of_the_engine_too() -> None:
    results = echo.run_batch(
        [(1,)], backend=FakeEngine({"a": InternalError("boom")}), return_exceptions=True
    )
    assert isinstance(results[0], InternalError)
    assert str(results[0].where).startswith("test_lang_batch.py:")


def test_generator_style_yields_in_order_and_does_not_run_away() -> None:
    taken = []

    def items():
        for i in range(50):
            taken.append(i)
            yield (i,)

    results = echo.run_batch(items(), backend=FakeEngine(), num_threads=4, generator_style=True)
    first = next(results)
    assert first.ret_value == 0
    assert len(taken) <= 8
    assert [s.ret_value for s in results] == list(range(1, 50))
    results = echo.run_batch(
        [(i,) for i in range(5)], backend=bad_at(3), num_threads=2, generator_style=True
    )
    assert [next(results).ret_value for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3"):
        next(results)


def test_generator_style_waits_for_a_slow_item_before_it_runs_far_ahead() -> None:
    taken = []
    go = threading.Event()

    def items():
        for i in range(20):
            taken.append(i)
            yield (i,)

    @sl.function
    def program(s, i):
        if i == 0:
            go.wait(5)
        return i

    ahead: list[int] = []
    threading.Timer(0.1, lambda: (ahead.append(len(taken)), go.set())).start()
    states = program.run_batch(items(), backend=FakeEngine(), num_threads=3, generator_style=True)
    assert [s.ret_value for s in states] == list(range(20))
    assert ahead == [3]


def test_leaving_a_generator_early_aborts_the_rest() -> None:
    engine = FakeEngine(delay=0.01)
    results = echo.run_batch([(i,) for i in range(8)], backend=engine, generator_style=True)
    next(results)
    results.close()
    assert engine.received[-1].aborted.wait(1)


@pytest.mark.parametrize("name", ["progress", "progress_bar"])
def test_progress_shows_items_and_tokens(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    states = echo.run_batch([(i,) for i in range(5)], backend=FakeEngine(), **{name: True})
    assert len(states) == 5
    shown = capfd.readouterr().err
    assert "5/5" in shown
    assert "tok/s" in shown
    assert "echo" in shown


@pytest.mark.parametrize("is_async", [True, False])
def test_ctrl_c_keeps_what_is_finished_and_aborts_the_rest(is_async: bool) -> None:
    third = threading.Event()

    def answer(before: str, _: object) -> str:
        if before == "3:":
            third.set()
            stop.wait(5)
        return "ok"

    async def aecho(s, i):
        s += f"{i}:" + sl.gen("a")
        await s.aget("a")
        return i

    program = sl.function(aecho) if is_async else echo
    stop = threading.Event()
    engine = FakeEngine({"a": answer})

    def interrupt() -> None:
        third.wait(5)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as error:
        program.run_batch([(i,) for i in range(10)], num_threads=2, backend=engine)
    thread.join()
    stop.set()
    assert isinstance(error.value, sl.BatchInterrupted)
    results = error.value.results
    assert len(results) == 10
    assert [r.ret_value for r in results[:3] if isinstance(r, sl.ProgramState)] == [0, 1, 2]
    assert results[3:] == [None] * 7
    assert engine.received[3].aborted.is_set()


def test_ctrl_c_in_a_single_run_aborts_it() -> None:
    engine = FakeEngine()
    engine.gate.clear()

    def interrupt() -> None:
        while not engine.received:
            time.sleep(0.005)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        echo.run(1, backend=engine)
    thread.join()
    engine.gate.set()
    assert engine.received[0].aborted.is_set()


def test_batches_inside_programs_do_not_starve() -> None:
    @sl.function
    def outer(s, i):
        inner = echo.run_batch([(i,), (i + 1,)], backend=engine)
        return sum(state.ret_value for state in inner)

    engine = FakeEngine()
    states = outer.run_batch([(i,) for i in range(AUTO_LIMIT + 6)], backend=engine)
    assert states[-1].ret_value == 2 * (AUTO_LIMIT + 5) + 1


def test_an_error_without_room_for_results_is_still_raised() -> None:
    class Taken(Exception):
        @property
        def results(self) -> int:
            return 0

    @sl.function
    def program(s):
        raise Taken

    with pytest.raises(Taken):
        program.run_batch([()], backend=FakeEngine())


def test_aborting_a_run_from_outside_raises_in_its_read() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a")
        with pytest.raises(Aborted):
            s["a"]
        s += sl.gen("b")
        with pytest.raises(Aborted):
            s["b"]

    engine = FakeEngine()
    engine.gate.clear()
    state = program.run(backend=engine, stream=True)
    while not engine.received:
        time.sleep(0.005)
    state._branch.run.abort()
    engine.gate.set()
    assert state.error() is not None
