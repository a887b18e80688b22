"""run_batch as a stream: bounded memory, order of completion, retries, concurrency, the bar."""

from __future__ import annotations

import gc
import io
import itertools
import math
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InternalError, InvalidRequest, Overloaded
from stolon.lang.concurrency import AUTO_LIMIT, Adaptive
from stolon.lang.progress import Progress
from stolon.srt.client import EngineStats
from stolon.srt.protocol import Gen


@sl.function
def echo(s, i):
    s += f"{i}:" + sl.gen("a")
    return i


# -- bounded memory ------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["generator_style", "as_completed"])
def test_an_endless_batch_is_pulled_no_further_than_it_runs(style: str) -> None:
    pulled = 0

    def endless() -> Iterator[tuple[int]]:
        nonlocal pulled
        for i in itertools.count():
            pulled += 1
            yield (i,)

    results = echo.run_batch(endless(), backend=FakeEngine(), num_threads=3, **{style: True})
    for handed in range(1, 20):
        next(results)
        assert pulled <= handed + 3
    results.close()


@pytest.mark.parametrize("style", ["generator_style", "as_completed"])
def test_states_that_were_handed_over_are_not_kept(style: str) -> None:
    seen: list[weakref.ref[sl.ProgramState]] = []
    alive = 0
    batch = ((i,) for i in range(12))
    for result in echo.run_batch(batch, backend=FakeEngine(), num_threads=2, **{style: True}):
        state = result[1] if isinstance(result, tuple) else result
        seen.append(weakref.ref(state))
        del state, result
        gc.collect()
        alive = max(alive, sum(ref() is not None for ref in seen))
    assert len(seen) == 12
    assert alive <= 4


def test_as_completed_does_not_wait_for_a_slow_item() -> None:
    slow = threading.Event()

    @sl.function
    def program(s, i):
        if i == 0:
            slow.wait(5)
        return i

    results = program.run_batch(
        [(i,) for i in range(6)], backend=FakeEngine(), num_threads=2, as_completed=True
    )
    first = [next(results) for _ in range(5)]
    assert sorted(index for index, _ in first) == [1, 2, 3, 4, 5]
    slow.set()
    index, state = next(results)
    assert (index, state.ret_value) == (0, 0)
    assert list(results) == []


def test_as_completed_raises_the_first_failure_or_hands_it_over() -> None:
    engine = FakeEngine({"a": InternalError("boom")})
    with pytest.raises(InternalError, match="item 0 of the batch"):
        list(echo.run_batch([(0,)], backend=engine, as_completed=True))
    ((index, error),) = echo.run_batch(
        [(0,)], backend=engine, as_completed=True, return_exceptions=True
    )
    assert index == 0
    assert isinstance(error, InternalError)


# -- retries -------------------------------------------------------------------------------------


class Flaky(FakeEngine):
    """Refuses each generation so many times before it answers it."""

    def __init__(self, error: Exception, times: int) -> None:
        super().__init__({"a": self._answer})
        self.refusal = error
        self.times = times
        self.seeds: list[int | None] = []

    def _answer(self, _: str, segment: Gen) -> str:
        self.seeds.append(segment.sampling.seed)
        if len(self.seeds) <= self.times:
            raise self.refusal
        return "ok"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_errors_that_may_pass_are_tried_again_with_the_same_seed(kind: str) -> None:
    async def body(s, i):
        s += f"{i}:" + sl.gen("a")
        await s.aget("a")

    program = sl.function(body) if kind == "async" else echo
    engine = Flaky(Overloaded("busy"), 2)
    (state,) = program.run_batch([(1,)], backend=engine, retries=2, backoff=0.001)
    assert state["a"] == "ok"
    assert len(engine.seeds) == 3
    assert len(set(engine.seeds)) == 1


def test_retries_are_counted_and_only_for_errors_that_may_pass() -> None:
    busy = Flaky(Overloaded("busy"), 9)
    with pytest.raises(Overloaded):
        echo.run_batch([(1,)], backend=busy, retries=1, backoff=0)
    assert len(busy.seeds) == 2
    broken = Flaky(InternalError("boom"), 9)
    with pytest.raises(InternalError):
        echo.run_batch([(1,)], backend=broken, retries=5, backoff=0)
    assert len(broken.seeds) == 1


def test_the_pause_doubles_and_a_server_may_ask_for_more() -> None:
    from stolon.lang.batch_options import BatchOptions

    options = BatchOptions.of({"retries": 3, "backoff": 1.0})
    error = Overloaded("busy")
    pauses = [options.pause(attempt, error) for attempt in range(4)]
    assert 0.75 <= (pauses[0] or 0) <= 1.0
    assert 1.5 <= (pauses[1] or 0) <= 2.0
    assert 3.0 <= (pauses[2] or 0) <= 4.0
    assert pauses[3] is None
    error.retry_after = 7.5  # type: ignore[attr-defined]
    assert options.pause(0, error) == 7.5


def test_leaving_a_batch_that_waits_to_retry_ends_it() -> None:
    engine = Flaky(Overloaded("busy"), 99)

    def items() -> Iterator[tuple[int]]:
        yield (1,)
        while not engine.seeds:
            time.sleep(0.002)
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(sl.BatchInterrupted):
        echo.run_batch(items(), backend=engine, retries=9, backoff=60)
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"num_threads": 2, "concurrency": 3}, "concurrency"),
        ({"concurrency": 0}, "concurrency"),
        ({"num_threads": True}, "num_threads"),
        ({"retries": -1}, "retries"),
        ({"backoff": "1s"}, "backoff"),
        ({"backoff": math.nan}, "backoff"),
        ({"progress": "yes"}, "progress"),
        ({"checkpoint": 3}, "checkpoint"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest, match=param) as error:
        echo.run_batch([(1,)], backend=FakeEngine(), **arguments)
    assert error.value.param == param
    assert str(error.value.where).startswith("test_lang_batch_stream.py:")


# -- concurrency ---------------------------------------------------------------------------------


def stats(**values: int) -> EngineStats:
    return EngineStats(kv_slots=1000, **values)


def test_places_grow_while_the_engine_has_no_queue() -> None:
    places = Adaptive(FakeEngine(), is_async=True)
    places.adapt(stats(running=AUTO_LIMIT), AUTO_LIMIT)
    assert places.limit == AUTO_LIMIT + AUTO_LIMIT // 4
    # Not while places are free: the batch itself is the limit then.
    before = places.limit
    places.adapt(stats(running=3), 3)
    assert places.limit == before
    for _ in range(60):
        places.adapt(stats(running=places.limit), places.limit)
    assert places.limit == 4096
    threads = Adaptive(FakeEngine(), is_async=False)
    for _ in range(60):
        threads.adapt(stats(running=threads.limit), threads.limit)
    assert threads.limit == 512


def test_places_shrink_when_requests_queue_or_are_put_back() -> None:
    places = Adaptive(FakeEngine(), is_async=True)
    for _ in range(30):  # an engine that runs 16 at once
        places.adapt(stats(running=16, waiting=max(0, places.limit - 16)), places.limit)
    assert 16 < places.limit <= 32
    before = places.limit
    places.adapt(stats(running=16, retractions=3), places.limit)
    places.adapt(stats(running=16, waiting=1, retractions=5), places.limit)
    assert places.limit < before
    for retractions in range(6, 60):
        places.adapt(stats(retractions=retractions), places.limit)
    assert places.limit == 4


def test_an_engine_that_tells_nothing_keeps_the_first_limit() -> None:
    places = Adaptive(FakeEngine(), is_async=True)
    places.adapt(EngineStats(waiting=500), AUTO_LIMIT)
    assert places.limit == AUTO_LIMIT


def test_a_batch_asks_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    class Telling(FakeEngine):
        def stats(self) -> EngineStats:
            nonlocal looks
            looks += 1
            return stats(running=1)

    monkeypatch.setattr("stolon.lang.concurrency._INTERVAL", 0.0)
    echo.run_batch([(i,) for i in range(200)], backend=Telling())
    assert looks > 3


# -- the bar -------------------------------------------------------------------------------------


def test_the_bar_counts_failures_and_needs_no_total(capfd: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine({"a": lambda before, _: 1 / 0 if before == "1:" else "ok"})  # type: ignore
    echo.run_batch(((i,) for i in range(4)), backend=engine, progress=True, return_exceptions=True)
    shown = capfd.readouterr().err
    assert "4run" in shown.replace(" ", "")
    assert "1 failed" in shown


def test_auto_draws_on_terminals_only(capfd: pytest.CaptureFixture[str]) -> None:
    echo.run_batch([(1,)], backend=FakeEngine(), progress="auto")
    assert capfd.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_printed_meanwhile_stand_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, bar = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", bar)
    progress = Progress("job", 2, shown=True)
    print("half", end="")
    assert screen.getvalue() == ""
    print(" and whole")
    assert screen.getvalue() == "half and whole\n"
    print("open", end="")
    progress.close()
    assert screen.getvalue() == "half and whole\nopen"
    assert sys.stdout is screen
    assert "job" in bar.getvalue()
