"""Expressions: how they concatenate, and which arguments contradict each other."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

import pytest
from pydantic import BaseModel
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang.ir import ExprList, GenExpr, RoleBegin, RoleEnd, SelectExpr, TextExpr, as_expr
from stolon.lang.options import RUN_DEFAULTS, SamplingOptions
from stolon.lang.typed import data_type, schema_type


def names(expr: object) -> list[str]:
    assert isinstance(expr, ExprList)
    return [
        part.text if isinstance(part, TextExpr) else f"<{getattr(part, 'name', '')}>"
        for part in expr
    ]


def test_concatenates_on_both_sides_and_with_lists() -> None:
    assert names("A: " + sl.gen("a") + "\n") == ["A: ", "<a>", "\n"]
    assert names(sl.gen("b") + ["y", "z"]) == ["<b>", "y", "z"]  # noqa: RUF005
    assert names(["x", "y"] + sl.gen("b")) == ["x", "y", "<b>"]  # noqa: RUF005


def test_roles_wrap_an_expression() -> None:
    assert as_expr(sl.user("hi")) == ExprList((RoleBegin("user"), TextExpr("hi"), RoleEnd("user")))
    assert as_expr(sl.assistant()) == ExprList((RoleBegin("assistant"), RoleEnd("assistant")))
    assert sl.system_begin() == RoleBegin("system")


def test_other_values_become_text_but_not_none() -> None:
    assert as_expr(3) == TextExpr("3")
    assert as_expr(True) == TextExpr("True")
    assert as_expr({"k": 1}) == TextExpr("{'k': 1}")
    assert as_expr(("a", 1)) == ExprList((TextExpr("a"), TextExpr("1")))
    with pytest.raises(InvalidRequest, match="None"):
        as_expr(None)
    with pytest.raises(InvalidRequest, match="call another program"):
        as_expr(sl.gen)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"regex": "a", "dtype": int}, ("dtype", "regex")),
        ({"regex": "a", "choices": ["a"]}, ("choices", "regex")),
        ({"schema": {}, "json_schema": {}}, ("json_schema", "schema")),
        ({"ebnf": "a", "lark": "b"}, ("ebnf", "lark")),
        ({"choices": ["a"], "max_tokens": 3}, ("max_tokens", "choices")),
        ({"choices": ["a"], "return_logprob": True}, ("return_logprob", "choices")),
        (
            {"choices": ["a"], "temperature": 0.7, "choices_method": "greedy_token_selection"},
            ("temperature", "greedy_token_selection"),
        ),
        ({"choices": ["a"], "n": 2}, ("n contradicts", "choices")),
        ({"choices_method": "greedy_token_selection"}, ("choices_method", "choices")),
        ({"top_logprobs_num": 2, "return_logprob": False}, ("top_logprobs_num", "return_logprob")),
    ],
)
def test_contradictions_are_refused_naming_both(arguments: dict, named: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest) as error:
        sl.gen("x", **arguments)
    for name in named:
        assert name in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"temperature": "hot"},
        {"max_tokens": 1.5},
        {"n": 0},
        {"n": 1000},
        {"stop": [1]},
        {"stop_token_ids": "a"},
        {"logit_bias": [1]},
        {"logit_bias": {"x": 1}},
        {"ignore_eos": 1},
        {"dtype": dict},
        {"dtype": "double"},
        {"regex": ""},
        {"choices": "ab"},
        {"choices": []},
        {"choices": ["a", "a"]},
        {"choices": [""]},
        {"choices": ["a"], "choices_method": "best"},
        {"json_schema": "{"},
        {"schema": 5},
        {"schema": {"enum": [object()]}},
        {"top_logprobs_num": 65},
    ],
)
def test_wrong_values_are_refused(arguments: dict) -> None:
    with pytest.raises(InvalidRequest):
        sl.gen("x", **arguments)


NUMBERS = [
    "max_tokens",
    "min_tokens",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logprob_start_len",
    "top_logprobs_num",
    "seed",
]


@pytest.mark.parametrize("value", [-11, 10**30, math.nan, math.inf])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    @sl.function
    def program(s):
        s += "q" + sl.gen("x", **{name: value})

    with pytest.raises(InvalidRequest, match=f"^{name} must be") as error:
        program.run(backend=FakeEngine())
    assert error.value.param == name


@pytest.mark.parametrize("value", [-1, -1e-9, 101, math.nan, math.inf])
def test_a_selection_refuses_a_temperature_out_of_range(value: float) -> None:
    for made in (sl.select, sl.gen):
        with pytest.raises(InvalidRequest, match="temperature must be") as error:
            made("x", choices=["a", "b"], temperature=value)
        assert error.value.param == "temperature"
    for seed in (-1, 2**63):
        with pytest.raises(InvalidRequest, match="seed must be"):
            sl.gen("x", choices=["a", "b"], seed=seed)


def test_names_must_be_strings() -> None:
    with pytest.raises(InvalidRequest, match="name"):
        sl.gen("")
    with pytest.raises(InvalidRequest, match="name"):
        sl.select(["a"], choices=["a"])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="choices"):
        sl.select("x")


def test_typed_shorthands_refuse_another_type() -> None:
    with pytest.raises(InvalidRequest, match="gen_int"):
        sl.gen_int("x", regex="a")
    made = sl.gen_string("x", max_tokens=3)
    assert isinstance(made, GenExpr)
    assert made.options.max_tokens == 3


def test_media_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="not supported"):
        sl.image("a.png")
    with pytest.raises(InvalidRequest, match="not supported"):
        sl.video("a.mp4", 3)


def test_select_defaults() -> None:
    made = sl.select("x", ["a", "b"])
    assert isinstance(made, SelectExpr)
    assert made.method == sl.token_length_normalized
    other = sl.gen("x", choices=["a"], choices_method=sl.greedy_token_selection, temperature=0.0)
    assert isinstance(other, SelectExpr)
    assert other.method == "greedy_token_selection"


class Pet(BaseModel):
    name: str
    age: int


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ('{"type": "array"}', "[1]", [1]),
        (Pet, '{"name": "Rex", "age": 3}', Pet(name="Rex", age=3)),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (list[int], "[1, 2]", [1, 2]),
        (Pet | None, "null", None),
    ],
)
def test_schemas_give_grammar_and_decoder(schema: object, text: str, value: object) -> None:
    for argument in ("schema", "json_schema"):
        made = sl.gen("x", **{argument: schema})
        assert isinstance(made, GenExpr)
        assert made.grammar is not None
        assert made.grammar.kind == "json_schema"
        json.loads(made.grammar.text)
        assert made.decode is not None
        assert made.decode.parse(text) == value


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        (int, "-12", -12),
        ("int", "+3 \n", 3),
        (float, ".5", 0.5),
        ("float", "-2", -2.0),
        (bool, "True", True),
        (bool, "False", False),
        (str, '"a, b! ü"', "a, b! ü"),
        (str, r'"say \"hi\"\n"', 'say "hi"\n'),
        (str, '""', ""),
    ],
)
def test_dtype_patterns_and_values(dtype: object, text: str, value: object) -> None:
    kind = data_type(dtype)  # type: ignore[arg-type]
    assert re.fullmatch(kind.pattern, text)
    assert kind.decode.parse(text) == value


@pytest.mark.parametrize(
    ("dtype", "text"),
    [(int, "1.5"), (int, "a"), (float, "1."), (bool, "true"), (str, '"a"b"'), (str, '"\n"')],
)
def test_dtype_patterns_refuse(dtype: type, text: str) -> None:
    assert not re.fullmatch(data_type(dtype).pattern, text)


def test_one_option_object_with_defaults_and_overrides() -> None:
    run = SamplingOptions.of({"stop": "\n", "top_k": -1, "temperature": 0}).over(RUN_DEFAULTS)
    call = SamplingOptions.of({"stop": ["a", "b"]}).over(run)
    sampling = call.sampling(seed=7, extra_stop=("b", "c"))
    assert sampling.stop == ("a", "b", "c")
    assert (sampling.top_k, sampling.temperature, sampling.max_tokens) == (0, 0.0, 128)
    assert sampling.seed == 7
    assert run.sampling(seed=1).stop == ("\n",)


def test_taking_options_leaves_the_programs_own_parameters() -> None:
    arguments = {"max_new_tokens": 5, "n": 3, "topic": "x"}
    taken = SamplingOptions.take(arguments, {"n", "topic"})
    assert arguments == {"n": 3, "topic": "x"}
    assert taken.given() == ["max_tokens"]
    with pytest.raises(InvalidRequest, match="two names"):
        SamplingOptions.take({"max_new_tokens": 5, "max_tokens": 5}, ())


def test_schemas_of_python_types_are_closed() -> None:
    class Inner(BaseModel):
        type: str
        properties: dict[str, int]

    class Open(BaseModel, extra="allow"):
        a: int

    class Outer(BaseModel):
        inner: Inner | None = None
        open: list[Open]

    schema = json.loads(schema_type(Outer, param="schema")[0].text)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Inner"]["additionalProperties"] is False
    assert schema["$defs"]["Inner"]["properties"]["properties"]["additionalProperties"] == {
        "type": "integer"
    }
    assert schema["$defs"]["Open"]["additionalProperties"] is True
    given = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert json.loads(schema_type(given, param="schema")[0].text) == given
