"""Requests of a remote backend: each ends once, however it ends."""

import asyncio
import contextvars
import threading

import pytest

from stolon.errors import (
    Aborted,
    BackendError,
    EngineClosed,
    InternalError,
    InvalidRequest,
    StolonError,
)
from stolon.lang.backends.under_way import UnderWay
from stolon.lang.runtime_loop import runtime_loop

WAIT = 10.0


class Ends:
    """What requests ended with, in order."""

    def __init__(self) -> None:
        self.errors: list[StolonError | None] = []
        self._some = threading.Semaphore(0)

    def __call__(self, error: StolonError | None) -> None:
        self.errors.append(error)
        self._some.release()

    def wait(self) -> StolonError | None:
        assert self._some.acquire(timeout=WAIT)
        return self.errors[-1]


async def forever() -> None:
    await asyncio.Event().wait()


async def nothing() -> None:
    pass


def test_a_request_cancelled_before_its_first_step_ends() -> None:
    requests, ends = UnderWay("a server"), Ends()
    held = threading.Event()
    runtime_loop().call(held.wait, WAIT)  # so that both reach the loop in one turn
    requests.begin("1", forever, ends)
    requests.abort("1")
    held.set()
    assert isinstance(ends.wait(), Aborted)
    assert (len(requests), len(ends.errors)) == (0, 1)


def test_how_requests_end() -> None:
    requests, ends = UnderWay("a server"), Ends()

    async def refused() -> None:
        raise BackendError("no")

    async def broken() -> None:
        raise KeyError("x")

    requests.begin("1", nothing, ends)
    assert ends.wait() is None
    requests.begin("1", refused, ends)  # the id is free again
    assert isinstance(ends.wait(), BackendError)
    requests.begin("1", broken, ends)
    error = ends.wait()
    assert isinstance(error, InternalError)
    assert "KeyError while a server answered" in error.message
    assert isinstance(error.__cause__, KeyError)


def test_an_id_under_way_is_refused_and_its_request_goes_on() -> None:
    requests, ends = UnderWay("a server"), Ends()
    requests.begin("1", forever, ends)
    other = Ends()
    requests.begin("1", forever, other)
    error = other.wait()
    assert isinstance(error, InvalidRequest)
    assert error.param == "rid"
    assert (len(requests), ends.errors) == (1, [])
    requests.close(nothing)


def test_closing_ends_all_and_then_the_connection() -> None:
    requests, ends = UnderWay("a server"), Ends()
    for rid in range(3):
        requests.begin(str(rid), forever, ends)
    seen: list[int] = []

    async def last() -> None:
        seen.append(len(ends.errors))

    requests.close(last)
    assert seen == [3]
    assert all(isinstance(error, Aborted) for error in ends.errors)
    assert len(requests) == 0
    with pytest.raises(EngineClosed, match="a server"):
        requests.begin("1", forever, ends)
    requests.close(nothing)


def test_a_request_sees_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")
    requests, ends = UnderWay("a server"), Ends()
    seen = []

    async def look() -> None:
        seen.append(variable.get())

    requests.begin("1", look, ends)
    assert ends.wait() is None
    assert seen == ["here"]
