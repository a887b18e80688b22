"""Errors: raised at the read and at the end, as what they are, with the program line."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import Aborted, EngineClosed, GrammarError, InternalError, InvalidRequest
from stolon.srt.protocol import Finish, GenResult


def line(offset: int = 0) -> str:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"test_lang_errors.py:{frame.f_back.f_lineno + offset}"


def test_raised_at_the_read_with_the_program_line() -> None:
    seen = []

    @sl.function
    def program(s):
        s += "x" + sl.gen("fine")
        here = line(+1)
        s += sl.gen("bad")
        assert s["fine"] == "ok"
        with pytest.raises(InternalError, match="boom") as error:
            s["bad"]
        assert error.value.where == here
        seen.append(error.value)
        raise error.value

    with pytest.raises(InternalError) as error:
        program.run(backend=FakeEngine({"bad": InternalError("boom")}))
    assert error.value is seen[0]
    assert "program" in error.value.__notes__[0]


def test_raised_at_the_end_when_nobody_reads() -> None:
    lines = []

    @sl.function
    def program(s):
        lines.append(line(+1))
        s += "x" + sl.gen()

    engine = FakeEngine(default=InternalError("boom"))
    with pytest.raises(InternalError) as error:
        program.run(backend=engine)
    assert error.value.where == lines[0]


def test_the_place_inside_a_schema_is_kept_beside_the_line() -> None:
    @sl.function
    def program(s):
        s += sl.gen("free") + sl.gen("typed", schema={"type": "object"})

    engine = FakeEngine({"free": GrammarError("bad", where="/properties/a", param="schema")})
    with pytest.raises(GrammarError) as error:
        program.run(backend=engine)
    assert error.value.where is not None
    assert error.value.where.endswith(": /properties/a")
    assert error.value.param == "schema"


def test_the_segment_that_the_engine_names_gives_the_line() -> None:
    lines = []

    @sl.function
    def program(s):
        s += "x" + sl.gen("a")
        lines.append(line(+1))
        s += sl.gen("b")

    refusal = InvalidRequest("no", param="top_p")
    refusal.segment = 2
    engine = FakeEngine({"a": refusal})
    with pytest.raises(InvalidRequest) as error:
        program.run(backend=engine)
    assert error.value.where == lines[0]


def test_an_error_that_the_program_has_seen_does_not_end_the_run() -> None:
    @sl.function
    def program(s):
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sl.gen(f"v{i}")
        values = []
        for i, f in enumerate(forks):
            try:
                values.append(f[f"v{i}"])
            except InternalError:
                values.append(None)
        return values

    state = program.run(backend=FakeEngine({"v1": InternalError("boom")}))
    assert state.ret_value == ["ok", None, "ok"]
    assert state.error() is None


def test_a_failed_branch_stays_failed_and_others_go_on() -> None:
    @sl.function
    def program(s):
        bad, good = s.fork(2)
        bad += sl.gen("bad")
        good += sl.gen("good")
        assert isinstance(bad.error(), InternalError)
        bad += "more" + sl.gen("later")
        with pytest.raises(InternalError, match="boom"):
            bad["later"]
        with pytest.raises(InternalError, match="boom"):
            bad.text()
        good += " " + sl.gen("good2")
        return good.text(), s.error()

    engine = FakeEngine({"bad": InternalError("boom")})
    assert program.run(backend=engine).ret_value == ("ok ok", None)
    assert len(engine.requests) == 3  # what follows a failed block is never sent


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


def test_wrong_arguments_are_refused_at_their_line() -> None:
    lines = []

    @sl.function
    def program(s):
        lines.append(line(+1))
        s += sl.gen("a", min_tokens=5, max_tokens=3)

    @sl.function
    def nothing(s):
        lines.append(line(+1))
        s += None

    with pytest.raises(InvalidRequest, match="min_tokens") as error:
        program.run(backend=FakeEngine())
    assert error.value.where == lines[0]
    with pytest.raises(InvalidRequest, match="None") as error:
        nothing.run(backend=FakeEngine())
    assert error.value.where == lines[1]


def test_run_defaults_are_checked_before_anything_runs() -> None:
    @sl.function
    def program(s):
        raise AssertionError("not reached")

    with pytest.raises(InvalidRequest, match="temperature"):
        program.run(temperature="hot", backend=FakeEngine())


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


def test_a_failed_borrowed_text_keeps_its_line() -> None:
    lines = []

    @sl.function
    def program(s):
        forks = s.fork(1)
        lines.append(line(+1))
        forks += sl.gen("bad")
        forks.join("concate_and_append")
        s += sl.gen("after")
        with pytest.raises(InternalError):
            s["after"]

    with pytest.raises(InternalError) as error:
        program.run(backend=FakeEngine({"bad": InternalError("boom")})).text()
    assert error.value.where == lines[0]


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


def test_an_error_names_its_branch_and_its_request() -> None:
    @sl.function
    def program(s):
        forks = s.fork(2)
        forks[1] += "x" + sl.gen("inner")
        deep = forks[1].fork(1)[0]
        deep += sl.gen("bad")
        deep["bad"]

    engine = FakeEngine({"bad": InternalError("boom")})
    with pytest.raises(InternalError) as error:
        program.run(backend=engine)
    rid = engine.received_by("bad").request.rid
    assert (error.value.branch, error.value.request) == ("0.1/0.0", rid)
    assert str(error.value) == f"boom [at {error.value.where}, branch 0.1/0.0, request {rid}]"
    copied = pickle.loads(pickle.dumps(error.value))
    assert (copied.branch, copied.request) == ("0.1/0.0", rid)


def test_the_root_branch_needs_no_name() -> None:
    @sl.function
    def program(s):
        s += sl.gen("bad")

    with pytest.raises(InternalError) as error:
        program.run(backend=FakeEngine({"bad": InternalError("boom")}))
    assert error.value.branch is None
    assert "branch" not in str(error.value)


def test_a_lost_engine_is_one_error_for_each_generation() -> None:
    lines = []

    @sl.function
    def program(s):
        s += "x" + sl.gen("fine")
        assert s["fine"] == "ok"
        engine.answers["a"] = engine.answers["b"] = EngineClosed("the connection is lost")
        forks = s.fork(2)
        lines.append(line(+1))
        forks[0] += sl.gen("a")
        lines.append(line(+1))
        forks[1] += sl.gen("b")

    engine = FakeEngine()
    with pytest.raises(EngineClosed, match="connection is lost") as error:
        program.run(backend=engine)
    assert error.value.where == lines[0]
    assert error.value.__notes__[0] == "2 errors in this run; the first is shown"
    state = error.value.state
    assert state["fine"] == "ok"
    assert [c.error.where for c in state._branch.run.calls[1:]] == lines


def test_reading_a_failure_again_and_again_shows_that_read_alone() -> None:
    @sl.function
    def program(s):
        s += sl.gen("bad")
        depths = []
        for _ in range(3):
            with pytest.raises(InternalError) as error:
                s["bad"]
            frames = traceback.extract_tb(error.value.__traceback__)
            assert frames[0].name == "program"
            depths.append(len(frames))
        return depths

    depths = program.run(backend=FakeEngine({"bad": InternalError("boom")})).ret_value
    assert depths[0] == depths[1] == depths[2]


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


# -- exceptions that are no errors -----------------------------------------------------------------


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
