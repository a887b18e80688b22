"""Variables: what generations and scopes leave in a state, their values and their facts."""

from __future__ import annotations

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InvalidRequest, ProgramError


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
    assert error.value.where.startswith("test_lang_variables.py:")


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
