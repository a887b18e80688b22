"""Whole programs: what they call, take as arguments, bind and draw, on an engine without a model."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.srt.protocol import Select


def test_the_main_job() -> None:
    class Person(BaseModel):
        name: str
        age: int

    @sl.function
    def profile(s: sl.ProgramState, note: str) -> str:
        s += sl.user("Extract the person.\n" + note)
        s += sl.assistant(sl.gen("person", schema=Person))
        views = s.fork(3)
        for angle, v in zip(("work", "family", "health"), views, strict=True):
            v += sl.user(f"On {angle}.") + sl.assistant(sl.gen("line", max_tokens=40, stop="."))
        s += sl.user("Retired?") + sl.assistant(sl.select("retired", ["yes", "no"]))
        s.set_var("lines", [v["line"] for v in views])
        return "done"

    engine = FakeEngine(
        {
            "person": '{"name": "Maria", "age": 34}',
            "line": lambda before, _: before.rsplit("On ", 1)[1].split(".")[0],
            "retired": "no",
        },
        chat_template=tiny_chat_template(),
    )
    state = profile.run(note="Maria, 34", backend=engine)
    assert state.value("person") == Person(name="Maria", age=34)
    assert state["person"] == '{"name": "Maria", "age": 34}'
    assert state["lines"] == ["work", "family", "health"]
    assert state["retired"] == state.value("retired") == "no"
    assert state.ret_value == "done"
    assert [m["role"] for m in state.messages()] == ["user", "assistant"] * 2
    assert state.messages()[-1]["content"] == "no"
    scores = state.scores("retired")
    assert scores.best == "no"
    assert scores["no"] > scores["yes"]
    assert set(scores) == {"yes", "no"}
    assert scores.normalized("no") == -0.25


def test_programs_call_programs() -> None:
    @sl.function
    def step(s, word, *, times=1):
        s += f"{word * times}:" + sl.gen(word)
        return s[word]

    @sl.function
    def program(s):
        first = step(s, "a", times=2)
        return first + step(s, word="b")

    engine = FakeEngine({"a": "1", "b": "2"})
    state = program.run(backend=engine)
    assert state.ret_value == "12"
    assert state.text() == "aa:1b:2"
    sl.set_default_backend(engine)
    try:
        assert step("a")["a"] == "1"  # outside a program a call is a run
    finally:
        sl.set_default_backend(None)
    with pytest.raises(TypeError, match="word"):
        step.run(backend=engine)


def test_run_defaults_reach_every_generation_and_can_be_overridden() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a") + sl.gen("b", temperature=0.5, stop="!", max_tokens=9)

    engine = FakeEngine()
    program.run(backend=engine, temperature=0, max_new_tokens=16, stop=["\n"], top_k=-1)
    a, b = engine.gen("a").sampling, engine.gen("b").sampling
    assert (a.temperature, a.max_tokens, a.stop, a.top_k) == (0.0, 16, ("\n",), 0)
    assert (b.temperature, b.max_tokens, b.stop) == (0.5, 9, ("!",))
    engine = FakeEngine()
    program.run(backend=engine)
    a = engine.gen("a").sampling
    assert (a.temperature, a.max_tokens, a.top_p) == (1.0, 128, 1.0)


def test_a_parameter_named_like_an_option_is_the_programs() -> None:
    @sl.function
    def program(s, n, stop):
        s += sl.gen("a")
        return n, stop

    engine = FakeEngine()
    assert program.run(3, stop="x", backend=engine).ret_value == (3, "x")
    assert engine.gen("a").sampling.stop == ()


def test_unknown_arguments_are_errors() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a")

    with pytest.raises(TypeError, match="tempreature"):
        program.run(tempreature=1, backend=FakeEngine())


def test_bind_conflicts_are_errors() -> None:
    @sl.function
    def program(s, a, b=2):
        return a, b

    engine = FakeEngine()
    bound = program.bind(b=3)
    assert bound.run(1, backend=engine).ret_value == (1, 3)
    assert bound.bind(a=5).run(backend=engine).ret_value == (5, 3)
    assert program.run(1, backend=engine).ret_value == (1, 2)
    for call in (
        lambda: bound.run(1, b=4, backend=engine),
        lambda: bound.run(1, 4),
        lambda: bound.bind(b=1),
    ):
        with pytest.raises(InvalidRequest, match="'b' is bound"):
            call()
    with pytest.raises(TypeError, match="'c'"):
        program.bind(c=1)

    @sl.function
    def open_ended(s, **rest):
        return rest

    loose = open_ended.bind(c=1)
    assert loose.run(d=2, backend=engine).ret_value == {"c": 1, "d": 2}
    with pytest.raises(InvalidRequest, match="'c' is bound"):
        loose.run(c=2, backend=engine)


def test_decorator_checks_its_function() -> None:
    @sl.function()
    def fine(s):
        """Doc."""

    assert fine.__doc__ == "Doc."
    assert fine.__name__ == "fine"
    with pytest.raises(InvalidRequest, match="named s, not 'state'") as error:

        @sl.function
        def wrong(state): ...

    assert str(error.value.where).startswith("test_lang_programs.py:")
    with pytest.raises(InvalidRequest, match="named s"):
        sl.function(lambda: None)
    with pytest.raises(InvalidRequest, match="'backend'"):
        sl.function(lambda s, backend: None)


def test_seeds_follow_run_branch_and_position() -> None:
    @sl.function
    def program(s):
        s += "x" + sl.gen("a") + sl.gen("b") + sl.gen("fixed", seed=5)
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sl.gen(f"c{i}")

    def seeds(**kwargs: int) -> list[int | None]:
        engine = FakeEngine()
        state = program.run(backend=engine, **kwargs)
        again = FakeEngine()
        program.run(backend=again, seed=state.seed)
        names = ("a", "b", "c0", "c1", "fixed")
        assert [again.gen(n).sampling.seed for n in names] == [
            engine.gen(n).sampling.seed for n in names
        ]
        return [engine.gen(name).sampling.seed for name in names]

    one = seeds(seed=1)
    assert one == seeds(seed=1)
    assert one[-1] == 5
    assert len(set(one)) == 5
    assert not set(one[:-1]) & set(seeds(seed=2))
    assert seeds() != seeds()


def test_backend_functions() -> None:
    engine = FakeEngine()
    assert sl.flush_cache() is False
    assert sl.get_server_info() is None
    sl.set_default_backend(engine)
    try:
        assert sl.flush_cache() is True
        info = sl.get_server_info()
        assert info is not None
        assert info["name"] == "fake"
        assert info["stats"]["requests"] == 0
    finally:
        sl.set_default_backend(None)
    assert engine.flushes == 1


def test_ten_rounds_of_select_and_tool() -> None:
    @sl.function
    def agent(s, limit):
        for turn in range(limit):
            s += f"Step {turn}: " + sl.select("action", ["tool", "finish"])
            if s["action"] == "finish":
                s += " Answer: " + sl.gen("answer")
                return turn
            s += " -> " + sl.gen("expression")
            s += f" = {len(s['expression'])}\n"
        return None

    engine = FakeEngine(
        {"action": lambda before, _: "", "expression": "12*3"},
    )
    engine.answers["action"] = "tool"
    assert agent.run(3, backend=engine).ret_value is None
    engine.answers["action"] = "finish"
    assert agent.run(3, backend=engine).ret_value == 0
    assert isinstance(engine.requests[-2].segments[-1], Select)
