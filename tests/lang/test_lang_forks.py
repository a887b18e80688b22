"""Forks: branches that carry everything, are appended to together, and are joined."""

from __future__ import annotations

import time

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.srt.protocol import Gen


def test_fork_group_appends_and_joins() -> None:
    @sl.function
    def program(s):
        s += "start" + sl.gen("shared")
        s["kept"] = "parent"
        forks = s.fork(2)
        assert len(forks) == 2
        forks += " all"
        forks += [" one" + sl.gen("v"), " two" + sl.gen("v")]
        forks += lambda i: f" {i}"
        forks[1] += " more"
        forks[0]["kept"] = "changed"
        forks[1]["only"] = 1
        forks.join()
        return [f.text() for f in forks]

    engine = FakeEngine({"v": lambda before, _: before[-3:]})
    state = program.run(backend=engine)
    assert state.ret_value == ["startok all oneone 0", "startok all twotwo 1 more"]
    assert state["v"] == ["one", "two"]
    assert state["kept"] == ["changed", "parent"]  # re-assigned in one child: the other inherits
    assert state["only"] == [None, 1]  # missing in one child: a None keeps the places
    assert state["shared"] == "ok"
    assert state.text() == "startok"


def test_fork_group_refuses_what_does_not_fit() -> None:
    @sl.function
    def program(s):
        forks = s.fork(2)
        with pytest.raises(InvalidRequest, match="3 was appended to 2"):
            forks += ["a", "b", "c"]
        with pytest.raises(InvalidRequest, match="join mode"):
            forks.join("other")
        with pytest.raises(InvalidRequest, match="replaced"):
            forks[0] = forks[1]
        with pytest.raises(InvalidRequest, match="positive"):
            s.fork(0)

    program.run(backend=FakeEngine())


def test_a_fork_carries_everything() -> None:
    @sl.function
    def program(s):
        s += sl.user("Q") + sl.assistant(sl.gen("a", return_logprob=True)) + sl.user_begin() + "x"
        child = s.fork(1)[0]
        child += "y" + sl.user_end()
        child += sl.assistant(sl.gen("b"))
        assert child["a"] == "A"
        assert child.get_meta_info("a") == s.get_meta_info("a")
        assert [m["content"] for m in child.messages()] == ["Q", "A", "xy", "ok"]
        assert [m["content"] for m in s.messages()] == ["Q", "A"]
        return child.text()

    state = program.run(backend=FakeEngine({"a": "A"}, chat_template=tiny_chat_template()))
    assert state.ret_value.startswith(state.text() + "y<|im_end|>")


def test_fork_before_any_text() -> None:
    @sl.function
    def program(s):
        forks = s.fork(2)
        forks += sl.gen("a")
        forks.join()

    engine = FakeEngine()
    assert program.run(backend=engine)["a"] == ["ok", "ok"]
    assert all(isinstance(r.segments[0], Gen) for r in engine.requests)


def test_concatenating_branches_appends_their_text() -> None:
    @sl.function
    def program(s):
        s += "Facts:"
        forks = s.fork(2)
        forks += lambda i: f" [{i}] " + sl.gen("fact")
        forks.join("concate_and_append")
        s += " So " + sl.gen("answer")

    engine = FakeEngine({"fact": lambda before, _: f"f{before[-3]}"})
    state = program.run(backend=engine)
    assert state.text() == "Facts: [0] f0 [1] f1 So ok"
    assert engine.received_by("answer").prompt == "Facts: [0] f0 [1] f1 So "


def test_concatenating_branches_keeps_messages() -> None:
    @sl.function
    def program(s):
        forks = s.fork(2)
        forks += lambda i: sl.user(f"q{i}") + sl.assistant(sl.gen("a"))
        forks.join("concate_and_append")

    @sl.function
    def half(s):
        forks = s.fork(1)
        forks += sl.user_begin()
        forks.join("concate_and_append")

    state = program.run(backend=FakeEngine(chat_template=tiny_chat_template()))
    assert [m["content"] for m in state.messages()] == ["q0", "ok", "q1", "ok"]
    with pytest.raises(InvalidRequest, match="another role"):
        half.run(backend=FakeEngine())


def test_copy_is_a_fork_of_one_joined_at_the_end() -> None:
    @sl.function
    def program(s):
        s += "a"
        with s.copy() as c:
            c += "b" + sl.gen("inner")

    state = program.run(backend=FakeEngine())
    assert state["inner"] == ["ok"]
    assert state.text() == "a"


def test_500_live_states_are_quick() -> None:
    @sl.function
    def program(s):
        s += "shared " * 50
        forks = s.fork(500)
        forks += lambda i: f"{i}: " + sl.gen("a")
        return sum(len(f["a"]) for f in forks)

    start = time.perf_counter()
    state = program.run(backend=FakeEngine())
    assert state.ret_value == 1000
    assert time.perf_counter() - start < 5
