"""Engines that are closed, abort or fail, and threads that must neither block nor pile up."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import Aborted, EngineClosed, InternalError, InvalidRequest
from stolon.srt.protocol import Finish, GenResult


def test_a_closed_engine_is_an_error_of_the_generation() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a")

    engine = FakeEngine()
    engine.close()
    with pytest.raises(EngineClosed):
        program.run(backend=engine)


def test_a_generation_that_the_engine_aborts_is_no_value() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a")

    engine = FakeEngine()
    engine._generate = lambda *_: GenResult(  # type: ignore[method-assign]
        text="par", token_ids=[1], finish=Finish(kind="abort")
    )
    with pytest.raises(Aborted):
        program.run(backend=engine)

    @sl.function
    def goes_on(s):
        s += sl.gen("a")
        assert isinstance(s.error(), Aborted)
        s += "more" + sl.gen("b")
        with pytest.raises(Aborted):
            s["b"]

    goes_on.run(backend=engine)
    assert len(engine.requests) == 2


def test_helper_threads_of_a_body_read_like_the_body() -> None:
    @sl.function
    def program(s):
        forks = s.fork(4)
        forks += lambda i: f"{i}" + sl.gen("a")
        with ThreadPoolExecutor(4) as pool:
            missing = pool.submit(lambda: s["missing"])
            with pytest.raises(KeyError):
                missing.result(2)
            return list(pool.map(lambda f: f.text(), forks)), pool.submit(s.text).result(2)

    for stream in (False, True):
        state = program.run(backend=FakeEngine(), stream=stream)
        state.sync()
        assert state.ret_value == (["0ok", "1ok", "2ok", "3ok"], "")


def test_a_finished_state_can_be_continued() -> None:
    @sl.function
    def program(s):
        s += "x" + sl.gen("a")

    state = program.run(backend=FakeEngine())
    state += "y" + sl.gen("b")
    assert state["b"] == "ok"
    assert [f.text() for f in state.fork(2)] == ["xokyok"] * 2


def test_a_fault_of_the_client_is_an_internal_error() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a")

    engine = FakeEngine()
    engine.submit = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        program.run(backend=engine)


def test_a_dropped_reference_ends_nothing() -> None:
    @sl.function
    def program(s):
        def branch() -> None:
            f = s.fork(1)[0]
            f += "x" + sl.gen("orphan")

        branch()
        gc.collect()

    engine = FakeEngine()
    state = program.run(backend=engine)
    assert engine.received_by("orphan").ended.wait(1)
    assert state.trace.calls[0].finish == "stop"


def test_a_sync_program_on_the_loop_thread_is_refused_not_a_deadlock() -> None:
    @sl.function
    def inner(s):
        s += sl.gen("a")

    @sl.function
    async def outer(s):
        inner.run(backend=engine)

    engine = FakeEngine()
    with pytest.raises(InvalidRequest, match="block the event loop"):
        outer.run(backend=engine)


def test_threads_do_not_pile_up() -> None:
    @sl.function
    def program(s):
        forks = s.fork(50)
        forks += sl.gen("a")
        return threading.active_count()

    engine = FakeEngine()
    program.run(backend=engine)
    before = threading.active_count()
    assert program.run(backend=engine).ret_value == before
