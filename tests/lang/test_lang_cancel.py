"""Runs that are ended early, by their caller or by their body."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from support.fake_engine import FakeEngine
from support.small_programs import profile

import stolon as sl
from stolon.errors import (
    Aborted,
)
from stolon.srt.protocol import Event, Request


def test_cancel_aborts_a_streaming_run() -> None:
    ended, slowed = threading.Event(), threading.Event()

    @sl.function
    def program(s):
        try:
            s += "x" + sl.gen("first")
            s["first"]
            slowed.wait(5)
            s += sl.gen("slow")
            s["slow"]
        finally:
            ended.set()

    engine = FakeEngine()
    state = program.run(backend=engine, stream=True)
    assert state["first"] == "ok"
    engine.delay = 5.0
    slowed.set()
    pieces = state.text_iter()
    assert next(pieces) == "x"
    pieces.close()  # the run goes on
    assert not ended.wait(0.05)
    state.cancel()
    assert ended.wait(2)
    for read in (lambda: state["slow"], state.text, lambda: list(state.text_iter())):
        with pytest.raises(Aborted):
            read()
    assert isinstance(state.error(), Aborted)
    assert state["first"] == "ok"
    assert all(e.aborted.is_set() for e in engine.received if "slow" in e.names)


def test_cancel_does_not_wait_for_a_busy_body() -> None:
    go = threading.Event()

    @sl.function
    def program(s):
        s += "x"
        go.wait(5)
        s += sl.gen("later")

    engine = FakeEngine()
    state = program.run(backend=engine, stream=True)
    state.cancel()
    with pytest.raises(Aborted, match="cancelled"):
        state["later"]
    with pytest.raises(Aborted, match="cancelled"):
        state.text()
    go.set()
    assert not engine.received


def test_a_cancelled_run_has_failed_even_if_the_body_goes_on() -> None:
    @sl.function
    def program(s):
        s += "x" + sl.gen("a")
        s["a"]
        s.cancel()
        s += sl.gen("b")
        with pytest.raises(Aborted):
            s["b"]
        s["note"] = 1

    with pytest.raises(Aborted, match="cancelled") as error:
        program.run(backend=FakeEngine())
    assert (error.value.state["a"], error.value.state["note"]) == ("ok", 1)


def test_cancel_after_the_end_does_nothing() -> None:
    state = profile.run("x", backend=FakeEngine())
    state.cancel()
    assert state.text() == "x:ok"
    assert state.error() is None


def test_a_run_that_ends_while_a_request_is_sent_aborts_it() -> None:
    class Slow(FakeEngine):
        def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
            run = state._branch.run
            run.abort()
            super().submit(request, on_event)

    @sl.function
    def program(s):
        go.wait(2)
        s += "x" + sl.gen("a")
        s["a"]

    go = threading.Event()
    engine = Slow()
    engine.gate.clear()
    state = program.run(backend=engine, stream=True)
    go.set()
    with pytest.raises(Aborted):
        state["a"]
    assert engine.received[0].aborted.wait(1)
    engine.gate.set()
