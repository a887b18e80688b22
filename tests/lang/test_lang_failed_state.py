"""What the state of a run gives after a mistake: the error that names it, and all that was finished."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.small_programs import profile
from support.where import line

import stolon as sl
from stolon.errors import (
    ContextLengthExceeded,
    InternalError,
    InvalidRequest,
    StolonError,
    UnknownVariable,
    error_from_code,
)


def test_an_unknown_variable_is_a_key_error_and_an_invalid_request() -> None:
    for stream in (False, True):
        state = profile.run("x", backend=FakeEngine(), stream=stream)
        reads: list[Callable[[], Any]] = [
            lambda state=state: state["nope"],
            lambda state=state: state.get_var("nope"),
            lambda state=state: state.value("nope"),
            lambda state=state: state.scores("nope"),
            lambda state=state: state.get_meta_info("nope"),
            lambda state=state: list(state.text_iter("nope")),
            lambda state=state: asyncio.run(state.aget("nope")),
            lambda state=state: asyncio.run(state.avalue("nope")),
        ]
        for read in reads:
            with pytest.raises(KeyError) as error:
                read()
            assert isinstance(error.value, UnknownVariable)
            assert error.value.code == "unknown_variable"
            assert str(error.value).startswith("no variable 'nope'; variables so far: 'a' [at ")
            assert error.value.hint in str(error.value)
        assert "nope" not in state
    made = error_from_code("unknown_variable", "gone")
    assert isinstance(made, KeyError)
    assert str(made) == "gone"


def test_an_unknown_variable_names_the_line_that_reads_it() -> None:
    seen = []

    @sl.function
    def program(s):
        try:
            s["nope"]
        except KeyError as error:
            seen.append((error.where, line(-2)))

    @sl.function
    async def coroutine(s):
        try:
            await s.aget("nope")
        except KeyError as error:
            seen.append((error.where, line(-2)))
        try:
            async for _ in s.text_async_iter("nope"):
                pass
        except KeyError as error:
            seen.append((error.where, line(-3)))

    program.run(backend=FakeEngine())
    coroutine.run(backend=FakeEngine())
    assert len(seen) == 3
    assert all(where == wanted for where, wanted in seen)


def test_other_reads_that_are_refused_name_their_line() -> None:
    state = profile.run("x", backend=FakeEngine())
    with pytest.raises(InvalidRequest, match="not a selection") as error:
        state.scores("a")
    assert error.value.where == line(-1)

    @sl.function
    def scoped(s):
        with s.var_scope("v"):
            s["v"]

    with pytest.raises(InvalidRequest, match="var_scope") as error:
        scoped.run(backend=FakeEngine())
    assert str(error.value.where).startswith("test_lang_failed_state.py:")


def test_an_error_carries_the_state_with_what_is_finished() -> None:
    @sl.function
    def program(s):
        s += "x" + sl.gen("a") + " then " + sl.gen("b")

    @sl.function
    def outer(s):
        s["mine"] = 1
        program.run(backend=engine)

    engine = FakeEngine({"b": ContextLengthExceeded("full")})
    with pytest.raises(ContextLengthExceeded) as error:
        program.run(backend=engine)
    assert error.value.state["a"] == "ok"
    with pytest.raises(ContextLengthExceeded):
        error.value.state["b"]
    with pytest.raises(ContextLengthExceeded) as error:
        asyncio.run(program.arun(backend=engine))
    assert error.value.state["a"] == "ok"
    with pytest.raises(ContextLengthExceeded) as error:
        outer.run(backend=engine)
    assert error.value.state["mine"] == 1  # of the run that the caller asked for

    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.state) == (str(error.value), None)


def test_errors_of_the_body_carry_the_state_too() -> None:
    class Own(Exception):
        state = "Ohio"

    @sl.function
    def program(s, kind):
        s += "x" + sl.gen("a")
        s["a"]
        raise kind

    @sl.function
    async def coroutine(s, kind):
        s += "x" + sl.gen("a")
        await s.aget("a")
        raise kind

    for body in (program, coroutine):
        with pytest.raises(ZeroDivisionError) as error:
            body.run(ZeroDivisionError, backend=FakeEngine())
        assert error.value.state["a"] == "ok"  # type: ignore[attr-defined]
        with pytest.raises(Own) as own:
            body.run(Own, backend=FakeEngine())
        assert own.value.state == "Ohio"
    results = program.run_batch(
        [(StolonError("no"),)], backend=FakeEngine(), return_exceptions=True
    )
    assert isinstance(results[0], StolonError)
    assert results[0].state["a"] == "ok"


def test_an_error_that_was_caught_leaves_its_branch_failed() -> None:
    @sl.function
    def on_the_state(s):
        s += "x" + sl.gen("bad")
        with pytest.raises(InternalError, match="boom"):
            s["bad"]
        s["mine"] = 1
        s += " and " + sl.gen("later")

    @sl.function
    def on_a_copy(s):
        s += "x"
        with s.copy() as trial:
            trial += sl.gen("bad")
            with pytest.raises(InternalError, match="boom"):
                trial["bad"]
        s += sl.gen("later")

    engine = FakeEngine({"bad": InternalError("boom")})
    state = on_the_state.run(backend=engine)  # which does not raise it
    assert state["mine"] == 1
    reads: list[Callable[[], Any]] = [lambda: state["bad"], lambda: state["later"], state.text]
    for read in reads:
        with pytest.raises(InternalError, match="boom"):
            read()
    assert isinstance(state.error(), InternalError)
    assert len(engine.requests) == 1

    state = on_a_copy.run(backend=engine)
    assert (state.text(), state.error()) == ("xok", None)


def test_a_state_says_how_it_can_be_kept() -> None:
    state = profile.run("x", backend=FakeEngine())
    for keep in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="bound to its run"):
            keep(state)
