"""Types in, types out: what a schema, a `dtype` or a pair of `select` makes of the text."""

from __future__ import annotations

import json
import random
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from pydantic import (
    AfterValidator,
    Field,
)
from support.fake_engine import FakeEngine
from support.grammar_walk import COMPILER, accepts, walk
from support.typed_kinds import (
    Age,
    Cat,
    Colour,
    Dog,
    Inside,
    Line,
    Modern,
    Outside,
    Pair,
    Point,
    Rank,
)

import stolon as sl
from stolon.errors import InvalidRequest, ProgramError
from stolon.lang.ir import GenExpr
from stolon.lang.typed import schema_type

CASES: list[tuple[Any, str, Any]] = [
    (int, "-3", -3),
    (float, "1.5", 1.5),
    (bool, "true", True),
    (str, '"a b"', "a b"),
    (list[int], "[1, 2]", [1, 2]),
    (list, '["a", 1]', ["a", 1]),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (tuple[int, bool], "[1, true]", (1, True)),
    (tuple[int, ...], "[1, 2]", (1, 2)),
    (Optional[int], "null", None),  # noqa: UP045
    (Union[int, bool], "true", True),  # noqa: UP007
    (int | str, '"x"', "x"),
    (Literal["a", 1, None], "1", 1),
    (Literal[Colour.RED], '"red"', Colour.RED),
    (Colour, '"blue"', Colour.BLUE),
    (Rank, "2", Rank.HIGH),
    (Annotated[int, Field(ge=3, le=4)], "4", 4),
    (Age, "30", 30),
    (Point, '{"x": 1, "y": 2}', Point(1, 2)),
    (
        Line,
        '{"ends": [{"x": 1, "y": 2}, {"x": 3, "y": 4}], "label": "b", "colour": "red"}',
        Line((Point(1, 2), Point(3, 4)), "b", Colour.RED),
    ),
    (Union[Cat, Dog], '{"kind": "dog", "name": "Rex"}', Dog(kind="dog", name="Rex")),  # noqa: UP007
    (
        list[Annotated[Cat | Dog, Field(discriminator="kind")]],
        '[{"kind": "cat", "lives": 9}]',
        [Cat(kind="cat", lives=9)],
    ),
    (Inside, '{"a": 1}', {"a": 1}),
    (Outside, '{"inside": {"a": 1}, "more": [null]}', {"inside": {"a": 1}, "more": [None]}),
    (Annotated[Inside, "note"], '{"a": 1}', {"a": 1}),
    (Modern, '{"a": 1}', {"a": 1}),
    (Pair, "[1, false]", Pair(1, False)),
    ({"type": "integer"}, "3", 3),
    ('{"enum": ["x"]}', '"x"', "x"),
]


@pytest.mark.parametrize(("kind", "text", "value"), CASES)
def test_the_value_is_of_the_type(kind: Any, text: str, value: Any) -> None:
    @sl.function
    def program(s):
        s += sl.gen("x", schema=kind)

    state = program.run(backend=FakeEngine({"x": text}))
    assert state["x"] == text
    got = state.value("x")
    assert got == value
    assert type(got) is type(value)
    grammar, _ = schema_type(kind, param="schema")
    assert accepts(COMPILER.compile(grammar), text)


@pytest.mark.parametrize("kind", [case[0] for case in CASES])
def test_whatever_is_generated_is_of_the_type(kind: Any) -> None:
    grammar, decode = schema_type(kind, param="schema")
    compiled = COMPILER.compile(grammar)
    rng = random.Random(repr(kind))
    ended = 0
    for _ in range(6):
        text = walk(compiled, rng)
        if text is not None:
            decode.parse(text.decode())
            ended += 1
    assert ended


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (tuple[int, bool], "[1]"),
        (Literal["a"], '"b"'),
        (Colour, '"green"'),
        (Outside, '{"more": []}'),
        (int | None, '"x"'),
        (Cat, '{"kind": "cat", "lives": 10}'),
    ],
)
def test_text_outside_the_type_is_an_error_that_names_it(kind: Any, text: str) -> None:
    @sl.function
    def program(s):
        s += sl.gen("x", schema=kind)

    state = program.run(backend=FakeEngine({"x": text}))
    with pytest.raises(ProgramError, match="'x' is no valid") as error:
        state.value("x")
    assert str(error.value.where).startswith("test_lang_types.py:")


@pytest.mark.parametrize("schema", [5, object(), lambda: None, [int], ..., "not json"])
def test_what_is_no_type_is_refused(schema: object) -> None:
    with pytest.raises(InvalidRequest) as error:
        sl.gen("x", schema=schema)
    assert error.value.param == "schema"
    assert str(error.value.where).startswith("test_lang_types.py:")


def test_json_text_with_a_keyword_twice_is_refused() -> None:
    text = '{"items": {"type": "integer", "type": "string"}}'
    with pytest.raises(InvalidRequest, match="the key 'type' occurs twice") as error:
        sl.gen("x", schema=text)
    assert str(error.value.where).startswith("test_lang_types.py:")


def test_a_type_is_read_once_and_unions_keep_their_order() -> None:
    first = sl.gen("x", schema=Line)
    second = sl.gen("y", schema=Line)
    assert isinstance(first, GenExpr)
    assert isinstance(second, GenExpr)
    assert first.decode is second.decode
    orders = [schema_type(kind, param="schema")[0].text for kind in (int | bool, bool | int)]
    assert [json.loads(text)["anyOf"][0]["type"] for text in orders] == ["integer", "boolean"]


def test_lists_when_there_are_several_samples() -> None:
    @sl.function
    def program(s):
        s += sl.gen("p", schema=Point, n=2) + sl.gen_int("i", n=3)

    engine = FakeEngine({"p": ['{"x": 1, "y": 2}', '{"x": 3, "y": 4}'], "i": ["1", "2", "3"]})
    state = program.run(backend=engine)
    assert state.value("p") == [Point(1, 2), Point(3, 4)]
    assert state.value("i") == [1, 2, 3]
    assert state["i"] == ["1", "2", "3"]


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


def test_the_text_is_the_label_and_the_value_is_the_object() -> None:
    thing, table = Unhashable(), {"a": [1]}
    pairs = [("one", thing), ("two", table), ("three", None), "four"]

    @sl.function
    def program(s, choices):
        s += sl.select("x", choices)

    for label, value in (("one", thing), ("two", table), ("three", None), ("four", "four")):
        state = program.run(pairs, backend=FakeEngine({"x": label}))
        assert state["x"] == label == state.text()
        assert state.value("x") is value or state.value("x") == value
        assert list(state.scores("x")) == ["one", "two", "three", "four"]
        assert state.scores("x").best == label


def test_choices_of_gen_take_pairs_too() -> None:
    @sl.function
    def program(s):
        s += sl.gen("x", choices=[("yes", True), ("no", False)])

    assert program.run(backend=FakeEngine({"x": "no"})).value("x") is False


@pytest.mark.parametrize(
    "choices",
    [
        [("a",)],
        [("a", 1, 2)],
        [(1, "a")],
        [("", 1)],
        [1],
        [("a", 1), ("a", 2)],
        [("a", 1), "a"],
        {"type": "object"}.items,
    ],
)
def test_wrong_choices_are_refused(choices: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        sl.select("x", choices)
    assert error.value.param == "choices"


def odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("must be odd")
    return value


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (Cat, '{"kind": "cat", "lives": 10}', "less than or equal to 9, at lives, in '{"),
        (list[Point], '[{"x": 1, "y": 2}, {"x": 1}]', "Field required, at 1.y, in"),
        (Annotated[int, AfterValidator(odd)], "2", "must be odd, in '2'"),
        ({"type": "integer"}, "{", "double quotes: line 1"),
    ],
)
def test_the_error_says_what_is_wrong_and_where(kind: Any, text: str, why: str) -> None:
    @sl.function
    def program(s):
        s += sl.gen("x", schema=kind)

    state = program.run(backend=FakeEngine({"x": text}))
    with pytest.raises(ProgramError) as error:
        state.value("x")
    assert why in error.value.message
    assert isinstance(error.value.__cause__, ValueError)


def test_whatever_a_type_raises_is_an_error_of_the_program() -> None:
    def refuse(value: int) -> int:
        raise TypeError("never an int")

    @sl.function
    def program(s):
        s += sl.gen("x", schema=Annotated[int, AfterValidator(refuse)])

    state = program.run(backend=FakeEngine({"x": "1"}))
    with pytest.raises(ProgramError, match="'x' is no valid") as error:
        state.value("x")
    assert "never an int" in error.value.message
    assert isinstance(error.value.__cause__, TypeError)
