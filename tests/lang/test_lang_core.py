"""The core: forks share what they go on from, samples become branches, branches end by themselves."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import Aborted, InternalError, InvalidRequest
from stolon.lang.calls import Known
from stolon.lang.history import History
from stolon.lang.latch import Latch, Signal
from stolon.srt.protocol import Tokens


def words(history: History) -> list[str]:
    return [item.text for item in history if isinstance(item, Known)]


def said(*texts: str, before: History | None = None, stop: int | None = None) -> History:
    history = History(before, stop)
    for text in texts:
        history.append(Known(text))
    return history


# -- histories -----------------------------------------------------------------------------------


def test_histories_share_their_beginning_and_see_nothing_later() -> None:
    root = said("a", "b")
    left = said("c", before=root)
    root.append(Known("x"))
    right = said("d", before=root)
    part = said("e", before=right, stop=1)
    assert words(root) == ["a", "b", "x"]
    assert words(left) == ["a", "b", "c"]
    assert words(right) == ["a", "b", "x", "d"]
    assert words(part) == ["a", "e"]
    for history in (root, left, right, part):
        items = list(history)
        assert len(history) == len(items)
        assert list(reversed(history)) == items[::-1]
        assert [history[i] for i in range(len(items))] == items
        assert [history[i - len(items)] for i in range(len(items))] == items
        for start in range(len(items) + 1):
            assert history.since(start) == history[start:] == items[start:]
        assert history[1:-1] == items[1:-1]
        with pytest.raises(IndexError):
            history[len(items)]


def test_a_long_chain_of_forks_is_no_deep_structure() -> None:
    history = said("a")
    for _ in range(5000):
        history = History(history)  # nothing is said in between: no link is kept
    assert history._before is not None
    assert history._before._before is None
    for index in range(5000):
        history = said(str(index), before=history)
    assert len(words(history)) == 5001


# -- waiting -------------------------------------------------------------------------------------


def test_latches_wake_threads_and_coroutines_once() -> None:
    latch, seen = Latch(), []

    async def main() -> None:
        waiters = [asyncio.create_task(latch.arrive()) for _ in range(3)]
        cancelled = asyncio.create_task(latch.arrive())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.to_thread(latch.set)
        await asyncio.gather(*waiters)
        assert cancelled.cancelled()
        await latch.arrive()

    latch.then(lambda: seen.append(1))
    latch.then(lambda: seen.append(2))
    assert not latch.wait(0.001)
    asyncio.run(main())
    latch.set()
    latch.then(lambda: seen.append(3))
    assert latch.wait()
    assert seen == [1, 2, 3]


def test_a_waiter_that_nobody_waits_for_any_more_does_no_harm() -> None:
    latch = Latch()

    async def main() -> None:
        asyncio.create_task(latch.arrive())  # noqa: RUF006
        await asyncio.sleep(0)
        assert latch._callbacks

    asyncio.run(main())
    latch.set()


def test_a_signal_taken_before_the_look_misses_nothing() -> None:
    signal = Signal()
    waiter = signal.waiter()
    assert signal.waiter() is waiter
    signal.notify()
    assert waiter.done()
    assert not signal.waiter().done()


# -- forks ---------------------------------------------------------------------------------------


def test_branches_send_the_same_list_of_tokens() -> None:
    @sl.function
    def program(s):
        s += "x" * 1000 + sl.gen("a")
        assert s["a"] == "ok"
        forks = s.fork(50)
        forks += sl.gen("v")

    engine = FakeEngine()
    program.run(backend=engine)
    prefixes = [r.segments[0] for r in engine.requests[1:]]
    assert all(isinstance(p, Tokens) and p.ids is prefixes[0].ids for p in prefixes)


def test_what_a_fork_costs_does_not_depend_on_the_history() -> None:
    def cost(items: int) -> float:
        @sl.function
        def program(s):
            for i in range(items):
                s += f"{i}"
                s[f"v{i}"] = i
            s += sl.gen("x")
            assert s["x"] == "ok"
            start = time.perf_counter()
            s.fork(2000)
            return (time.perf_counter() - start) / 2000

        return min(program.run(backend=FakeEngine()).ret_value for _ in range(3))

    assert cost(200) < 60e-6  # 3 us where it was measured


def test_variables_of_a_fork_are_its_own() -> None:
    @sl.function
    def program(s):
        s["a"] = 1
        s["b"] = 1
        left, right = s.fork(2)
        left["a"] = 2
        s["b"] = 3
        s["c"] = 4
        inner = left.fork(1)[0]
        inner["d"] = 5
        assert (left["a"], left["b"], "c" in left) == (2, 1, False)
        assert (right["a"], right["b"]) == (1, 1)
        assert (inner["a"], inner["b"], inner["d"], "d" in left) == (2, 1, 5, False)
        assert sorted(inner._branch.variables) == ["a", "b", "d"]
        assert len(inner._branch.variables) == 3

    program.run(backend=FakeEngine())


# -- fork by samples -----------------------------------------------------------------------------


def test_each_sample_goes_on_as_a_branch() -> None:
    @sl.function
    def program(s):
        s += "Q" + sl.gen("before") + " " + sl.gen("x", n=3)
        forks = s.fork_samples("x")
        for b in forks:
            b += "!" + sl.gen("after")
        assert [b["x"] for b in forks] == ["one", "two", "three"]
        assert [b.get_meta_info("x")["completion_tokens"] for b in forks] == [3, 3, 4]
        forks.join()
        return [b.text() for b in forks]

    engine = FakeEngine(
        {"x": ["one", "two", "three"], "after": lambda before, _: before.split()[-1].upper()}
    )
    state = program.run(backend=engine)
    assert state.ret_value == ["Qok one!ONE!", "Qok two!TWO!", "Qok three!THREE!"]
    assert state["x"] == ["one", "two", "three"]
    assert state["after"] == ["ONE!", "TWO!", "THREE!"]
    assert state.text() == "Qok one"
    tokenizer = engine.tokenizer
    prefixes = [r.segments[0] for r in engine.requests[2:]]
    assert prefixes == [Tokens(tokenizer.encode(f"Qok {t}")) for t in ("one", "two", "three")]


def test_samples_inside_a_message_and_a_scope() -> None:
    @sl.function
    def program(s):
        s += sl.user("Q")
        with s.var_scope("scope"):
            s += sl.assistant(sl.gen("x", n=2, dtype=int))
        inner = []
        for b in s.fork_samples("x"):
            b += sl.user("And?") + sl.assistant(sl.gen("y", n=2))
            inner += b.fork_samples("y")
        return [
            ([m["content"] for m in b.messages()], b.value("x"), b["scope"][22:-11]) for b in inner
        ]

    engine = FakeEngine({"x": ["1", "2"], "y": ["a", "b"]}, chat_template=tiny_chat_template())
    assert program.run(backend=engine).ret_value == [
        (["Q", x, "And?", y], int(x), x) for x in "12" for y in "ab"
    ]


def test_samples_fork_only_right_after_their_generation() -> None:
    @sl.function
    def program(s):
        s += sl.gen("x", n=2) + " then " + sl.gen("y") + sl.select("z", ["a", "b"])
        s["plain"] = 1
        for name in ("x", "y", "z", "plain", "missing"):
            with pytest.raises(InvalidRequest, match=f"fork_samples\\('{name}'\\)"):
                s.fork_samples(name)
        s += sl.gen("one")
        (only,) = s.fork_samples("one")
        with pytest.raises(InvalidRequest, match="no generation of this branch"):
            only.fork_samples("one")
        return only["one"]

    assert program.run(backend=FakeEngine()).ret_value == "ok"


def test_a_failed_generation_fails_in_each_of_its_samples() -> None:
    @sl.function
    def program(s):
        s += sl.gen("x", n=2)
        for b in s.fork_samples("x"):
            b += sl.gen("y")
            with pytest.raises(InternalError, match="boom"):
                b["y"]
            with pytest.raises(InternalError, match="boom"):
                b["x"]

    engine = FakeEngine({"x": InternalError("boom")})
    program.run(backend=engine)
    assert len(engine.requests) == 1


# -- ending a branch -----------------------------------------------------------------------------


def test_cancelling_a_branch_ends_it_and_its_children_alone() -> None:
    @sl.function
    def program(s):
        s += "x" + sl.gen("first")
        assert s["first"] == "ok"
        engine.gate.clear()
        loser, winner = s.fork(2)
        loser += sl.gen("slow")
        child = loser.fork(1)[0]
        child += "c" + sl.gen("below")
        winner += sl.gen("fast")
        s._branch.run.flush()
        loser.cancel()
        engine.gate.set()
        for branch, name in ((loser, "slow"), (child, "below")):
            with pytest.raises(Aborted, match=r"the branch was cancelled \[.*branch 0\.0"):
                branch[name]
            assert branch["first"] == "ok"  # what was there already stays
        loser += "more" + sl.gen("later")
        with pytest.raises(Aborted):
            loser["later"]
        loser.fork(1)[0].text  # noqa: B018
        return winner["fast"]

    engine = FakeEngine()
    state = program.run(backend=engine)
    assert state.ret_value == "ok"
    assert state.error() is None
    assert engine.received_by("slow").aborted.is_set()
    assert not engine.received_by("fast").aborted.is_set()
    assert [r.segments[-1].name for r in engine.requests] == ["first", "slow", "fast"]


def test_a_cancelled_branch_that_nobody_reads_is_no_error_and_is_not_waited_for() -> None:
    @sl.function
    def program(s):
        forks = s.fork(3)
        forks += sl.gen("v")
        s._branch.run.flush()
        forks.cancel()
        late = s.fork(1)
        late += sl.gen("unsent")
        late.cancel()

    engine = FakeEngine()
    engine.gate.clear()
    program.run(backend=engine)
    engine.gate.set()
    assert len(engine.requests) == 3
    assert all(entry.aborted.is_set() for entry in engine.received)


def test_an_exception_that_leaves_its_scope_ends_a_branch() -> None:
    @sl.function
    def program(s):
        def fails(scope: Any) -> None:
            with scope as inner:
                branch = inner[0] if isinstance(inner, sl.ForkGroup) else inner
                branch += sl.gen("v")
                s._branch.run.flush()
                raise ZeroDivisionError

        engine.gate.clear()
        for scope in (s.fork(1), s.fork(1)[0], s.copy()):
            with pytest.raises(ZeroDivisionError):
                fails(scope)
        with s.fork(2) as forks:
            forks += sl.gen("kept")
        engine.gate.set()
        return [f["kept"] for f in forks]

    engine = FakeEngine()
    assert program.run(backend=engine).ret_value == ["ok", "ok"]
    assert [e.aborted.is_set() for e in engine.received] == [True] * 3 + [False] * 2


def test_cancelling_the_root_from_inside_ends_the_run() -> None:
    @sl.function
    def program(s):
        s += "x" + sl.gen("a")
        s._branch.run.flush()
        s.cancel()
        with pytest.raises(Aborted):
            s["a"]
        raise AssertionError("goes on")

    engine = FakeEngine()
    engine.gate.clear()
    with pytest.raises(AssertionError):
        program.run(backend=engine)
    engine.gate.set()
    assert engine.received[0].aborted.is_set()
