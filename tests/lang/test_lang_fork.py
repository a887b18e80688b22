"""Programs in a fork of the process: an error, an engine of its own or a server, and never a silent wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from support.engines import hash_engine
from support.fake_engine import FakeEngine
from support.forked import error_of, in_fork
from support.http_server import running

import stolon as sl
import stolon.srt
from stolon.lang.backend import default_backend, given_backend
from stolon.lang.backends import RemoteEngine
from stolon.srt.engine import Engine

REFUSAL = "EngineClosed: the engine belongs to another process, which this one was forked from [at"


@sl.function
def program(s, word="x"):
    s += f"{word}:" + sl.gen("a", max_tokens=4)


@sl.function
async def coroutine(s):
    s += "x:" + sl.gen("a", max_tokens=4)
    return await s.aget("a")


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The default engine, started by a program that named none."""
    monkeypatch.setattr(stolon.srt, "Engine", hash_engine, raising=False)
    sl.set_default_backend(None)
    program.run(seed=1)
    engine = default_backend()
    assert isinstance(engine, Engine)
    yield engine
    sl.set_default_backend(None)
    engine.close()


def test_every_way_to_run_raises_at_once() -> None:
    with hash_engine() as engine:
        program.run(backend=engine)
        coroutine.run(backend=engine)  # the loop of async programs runs, too

        def ways() -> list[str]:
            return [
                error_of(lambda: program.run(backend=engine)),
                error_of(lambda: coroutine.run(backend=engine)),
                error_of(lambda: asyncio.run(program.arun(backend=engine))),
                error_of(lambda: asyncio.run(coroutine.arun(backend=engine))),
                error_of(lambda: program.run_batch([("a",), ("b",)], backend=engine)),
                error_of(lambda: program.run(backend=engine, stream=True)["a"]),
            ]

        said = in_fork(ways)
        assert len(said) == 6
        assert all(line.startswith(REFUSAL) for line in said), said
        assert "spawn" in said[0]
        assert len(program.run(backend=engine, seed=1).text()) > 2


def test_the_default_engine_is_started_anew(started: Engine) -> None:
    def child() -> list[object]:
        inherited = given_backend() is not None
        text = program.run(seed=1).text()
        return [inherited, default_backend() is started, text, program.run(seed=1).text() == text]

    assert in_fork(child) == [False, False, program.run(seed=1).text(), True]
    assert default_backend() is started


def test_an_engine_that_the_program_set_is_not_replaced_by_another() -> None:
    with hash_engine() as engine:
        sl.set_default_backend(engine)
        try:
            assert in_fork(lambda: error_of(program.run)).startswith(REFUSAL)
        finally:
            sl.set_default_backend(None)


def test_what_runs_in_the_parent_is_not_waited_for() -> None:
    engine = FakeEngine()
    done = program.run(backend=engine)
    engine.gate.clear()
    state = program.run(backend=engine, stream=True)
    until(lambda: len(engine.received) == 2)

    def reads() -> list[str]:
        return [
            done["a"],
            error_of(lambda: state["a"]),
            error_of(lambda: asyncio.run(state.aget("a"))),
            error_of(lambda: list(state.text_iter("a"))),
            error_of(lambda: state.ret_value),
        ]

    fine, *said = in_fork(reads)
    assert fine == "ok"
    assert len(said) == 4
    assert all(line.startswith("EngineClosed: this part of the program") for line in said), said
    engine.gate.set()
    assert state["a"] == "ok"
    engine.close()


def test_a_fork_runs_programs_on_the_server_of_its_parent() -> None:
    engine = FakeEngine()
    with running(engine) as server, RemoteEngine(server.url) as remote:
        assert program.run(backend=remote)["a"] == "ok"
        assert in_fork(lambda: program.run(backend=remote)["a"]) == "ok"
        engine.gate.clear()
        state = program.run(backend=remote, stream=True)
        until(lambda: len(engine.received) == 3)
        assert in_fork(remote.close) is None  # leaves the parent's requests alone
        engine.gate.set()
        assert state["a"] == "ok"
    engine.close()
