"""Programs against an engine without a model: variables, roles, forks, calls, arguments."""

from __future__ import annotations

import time

import pytest
from pydantic import BaseModel
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import InvalidRequest, ProgramError
from stolon.srt.protocol import Gen, Select


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


def test_two_turn_chat_text_and_messages() -> None:
    @sl.function
    def chat(s, question):
        s += sl.system("Be brief.")
        with s.user():
            s += "  " + question
        s.assistant(sl.gen("first"))
        s += sl.user_begin() + "And?" + sl.user_end()
        s += sl.assistant_begin()
        s += sl.gen("second")
        s += sl.assistant_end()

    engine = FakeEngine({"first": "one", "second": "two"}, chat_template=tiny_chat_template())
    state = chat.run("Q", backend=engine)
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "two"},
    ]
    begin, end = "<|im_start|>", "<|im_end|>\n"
    assert state.text() == (
        f"{begin}system\nBe brief.{end}{begin}user\n  Q{end}{begin}assistant\none{end}"
        f"{begin}user\nAnd?{end}{begin}assistant\ntwo{end}"
    )


def test_the_templates_default_system_prompt_is_in_the_text() -> None:
    @sl.function
    def chat(s):
        s += sl.user("Q") + sl.assistant(sl.gen("a"))

    engine = FakeEngine(chat_template=tiny_chat_template("Be kind."))
    state = chat.run(backend=engine)
    assert state.text().startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nQ")
    assert len(state.messages()) == 2


def test_roles_without_a_template_or_after_text_are_plain() -> None:
    @sl.function
    def chat(s):
        s += sl.user("Q") + sl.assistant(sl.gen("a"))

    @sl.function
    def late(s):
        s += "Some text.\n"
        chat(s)

    assert "User: Q" in chat.run(backend=FakeEngine()).text()
    state = late.run(backend=FakeEngine(chat_template=tiny_chat_template()))
    assert "<|im_start|>" not in state.text()
    assert state.text().startswith("Some text.\nUser: Q")


def test_user_text_is_never_special() -> None:
    @sl.function
    def chat(s):
        s += sl.user("<|im_end|>") + sl.assistant(sl.gen("a"))

    engine = FakeEngine(chat_template=tiny_chat_template())
    chat.run(backend=engine)
    texts = engine.requests[0].segments[:-1]
    assert [t.special for t in texts] == [True, False, True, True]
    assert texts[1].text == "<|im_end|>"


def test_roles_do_not_nest_and_must_match() -> None:
    @sl.function
    def nested(s):
        s += sl.user("a" + sl.assistant("b"))

    @sl.function
    def unmatched(s):
        s += sl.user_begin() + sl.assistant_end()

    @sl.function
    def closed(s):
        s += sl.user_end()

    engine = FakeEngine()
    with pytest.raises(InvalidRequest, match="nest"):
        nested.run(backend=engine)
    with pytest.raises(InvalidRequest, match="inside role 'user'"):
        unmatched.run(backend=engine)
    with pytest.raises(InvalidRequest, match="outside any role"):
        closed.run(backend=engine)


def test_variables_set_read_missing() -> None:
    @sl.function
    def program(s):
        assert "a" not in s
        s += "x" + sl.gen("a") + sl.gen()
        s["b"] = {"any": "value"}
        assert "a" in s
        assert "b" in s
        assert s["b"] == {"any": "value"}
        with pytest.raises(KeyError, match="'a', 'b'"):
            s["c"]

    state = program.run(backend=FakeEngine({"a": "A"}))
    assert state["a"] == state.get_var("a") == "A"
    assert state.text() == "xAok"
    assert None not in state  # an unnamed generation sets no variable
    with pytest.raises(KeyError):
        state["nothing"]


def test_values_follow_the_data_type() -> None:
    @sl.function
    def program(s):
        s += sl.gen_int("i") + sl.gen("f", dtype=float) + sl.gen("b", dtype=bool)
        s += sl.gen_string("s") + sl.gen("j", json_schema='{"type": "object"}')

    engine = FakeEngine({"i": "24 hours", "f": "1.5\n", "b": "True", "s": '"a b"', "j": '{"k": 1}'})
    state = program.run(backend=engine)
    values = [state.value(name) for name in "ifbsj"]
    assert values == [24, 1.5, True, "a b", {"k": 1}]
    assert state["i"] == "24"
    assert state["s"] == '"a b"'
    assert engine.gen("i").sampling.stop == (" ", "\n")


def test_a_value_cut_by_the_budget_says_so() -> None:
    @sl.function
    def program(s):
        s += sl.gen("j", schema={"type": "object"}, max_tokens=2)

    state = program.run(backend=FakeEngine({"j": '{"key": 1}'}))
    with pytest.raises(ProgramError, match="max_tokens") as error:
        state.value("j")
    assert error.value.where is not None
    assert error.value.where.startswith("test_lang_programs.py:")


def test_several_samples_are_a_list_and_the_first_goes_on() -> None:
    @sl.function
    def program(s):
        s += "Q" + sl.gen("before") + " " + sl.gen("many", n=3) + "!" + sl.gen("after")

    engine = FakeEngine({"before": "b", "many": ["x", "y", "z"], "after": "end"})
    state = program.run(backend=engine)
    assert state["many"] == ["x", "y", "z"]
    assert state.text() == "Qb x!end"
    assert [r.n for r in engine.requests] == [1, 3, 1]
    assert [entry.prompt[-1] for entry in engine.received] == ["Q", " ", "!"]
    assert len(state.get_meta_info("many")) == 3


def test_var_scope_is_the_text_inside_and_unreadable_before_its_end() -> None:
    @sl.function
    def program(s):
        s += "before "
        with s.var_scope("scope"):
            s += "in " + sl.gen("a")
            assert "scope" not in s
            with pytest.raises(InvalidRequest, match="var_scope"):
                s["scope"]
            child = s.fork(1)[0]
            assert "scope" not in child
        s += " after"
        assert s["scope"] == "in A"

    assert program.run(backend=FakeEngine({"a": "A"}))["scope"] == "in A"


def test_scopes_close_when_the_body_raises() -> None:
    @sl.function
    def program(s):
        try:
            with s.user(), s.var_scope("v"):
                s += "hi"
                raise ValueError
        except ValueError:
            pass
        s += sl.assistant(sl.gen("a"))

    state = program.run(backend=FakeEngine())
    assert [m["role"] for m in state.messages()] == ["user", "assistant"]
    assert state["v"] == "hi"


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


def test_message_content_keeps_blanks_at_its_end() -> None:
    @sl.function
    def program(s):
        s += sl.user(" \n a b \n")

    assert program.run(backend=FakeEngine()).messages() == [{"role": "user", "content": "a b \n"}]


def test_constraints_and_limits_reach_the_engine() -> None:
    @sl.function
    def program(s):
        s += "x"
        s += sl.gen("ip", regex=r"((25[0-5]|2[0-4]\d|[01]?\d\d?)(\.|$)){4}", min_tokens=3)
        s += sl.gen("e", ebnf='root ::= "a"') + sl.gen("l", lark='start: "a"')
        s += sl.gen("s", schema={"type": "integer"}, logit_bias={5: 1}, repetition_penalty=1.1)

    engine = FakeEngine()
    program.run(backend=engine)
    grammars = {n: engine.gen(n).grammar for n in ("ip", "e", "l", "s")}
    assert {n: g.kind for n, g in grammars.items() if g} == {
        "ip": "regex",
        "e": "ebnf",
        "l": "lark",
        "s": "json_schema",
    }
    assert engine.gen("ip").sampling.min_tokens == 3
    assert engine.gen("s").sampling.logit_bias == {5: 1.0}
    assert engine.gen("s").sampling.repetition_penalty == 1.1
    assert engine.gen("e").logprobs is None


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


def test_meta_info_of_generations_and_selections() -> None:
    @sl.function
    def program(s):
        s += "Q " + sl.gen("a", top_logprobs_num=1) + sl.select("b", ["x", "yy"]) + sl.gen("c")
        s["d"] = 1

    state = program.run(backend=FakeEngine({"a": "abc", "b": "yy"}))
    info = state.get_meta_info("a")
    assert info["completion_tokens"] == info["output_token_logprobs_length"] == 3
    assert info["output_token_logprobs"][0] == (-0.5, ord("a"), "a")
    assert info["output_top_logprobs"][2] == [(-0.5, ord("c"), "c")]
    assert info["finish_reason"] == {"type": "stop", "matched": None}
    assert info["prompt_tokens"] == 2
    assert "output_token_logprobs" not in state.get_meta_info("c")
    chosen = state.get_meta_info("b")
    assert chosen["normalized_prompt_logprobs"] == [-1.0, -0.25]
    assert chosen["input_token_logprobs"][1] == [(-0.25, ord("y"), "y")] * 2
    with pytest.raises(InvalidRequest, match="not a selection"):
        state.scores("a")
    with pytest.raises(InvalidRequest, match="single generation"):
        state.get_meta_info("d")


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
