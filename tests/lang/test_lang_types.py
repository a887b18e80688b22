"""Types in, types out: what a schema, a `dtype` or a pair of `select` makes of the text."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import ipaddress
import json
import pathlib
import random
import re
import typing
import uuid
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, Union

import pytest
import typing_extensions
from pydantic import (
    UUID1,
    AfterValidator,
    AliasChoices,
    AliasPath,
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    FiniteFloat,
    HttpUrl,
    ImportString,
    Json,
    PastDate,
    PostgresDsn,
    RootModel,
    Secret,
    SecretStr,
    StringConstraints,
    TypeAdapter,
    WithJsonSchema,
    create_model,
)
from support.fake_engine import FakeEngine
from support.grammar_walk import COMPILER, accepts, walk

import stolon as sl
from stolon.errors import InvalidRequest, ProgramError
from stolon.lang.ir import GenExpr
from stolon.lang.readable_types import readable
from stolon.lang.typed import schema_type


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Line:
    ends: tuple[Point, Point]
    label: Literal["a", "b"]
    colour: Colour | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = Field(max_length=5)


class Inside(typing.TypedDict):
    a: int


class Outside(typing.TypedDict, total=False):
    inside: typing.Required[Inside]
    more: list[Inside | None]


class Modern(typing_extensions.TypedDict):
    a: int
    b: NotRequired[bool]


class Pair(NamedTuple):
    n: int
    s: bool


Age = NewType("Age", int)

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


# -- choices with values -------------------------------------------------------------------------


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


class Code(enum.StrEnum):
    A = "a"
    B = "b"


class Moment(BaseModel):
    at: dt.datetime
    takes: dt.timedelta | None = None
    price: Annotated[Decimal, Field(ge=0, max_digits=6, decimal_places=2)]


EXACT: list[tuple[Any, list[Any]]] = [
    (int, [0, -5, 10**30]),
    (float, [0.5, -1e300]),
    (str, ["", 'é"\n']),
    (bool, [True, False]),
    (None, [None]),
    (Decimal, [Decimal("1.10"), Decimal("-1E-30"), Decimal("123456789012345678901234567890.5")]),
    (Annotated[Decimal, Field(max_digits=3, decimal_places=2)], [Decimal("-1.25"), Decimal(0)]),
    (Annotated[Decimal, Field(decimal_places=0)], [Decimal(7)]),
    (complex, [1 + 2j, -1.5e-07 - 2j]),
    (bytes, [b"abc"]),
    (dt.date, [dt.date(2020, 2, 29)]),
    (dt.time, [dt.time(1, 2, 3, tzinfo=dt.UTC)]),
    (dt.datetime, [dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC)]),
    (dt.timedelta, [dt.timedelta(days=400, seconds=3, microseconds=5), -dt.timedelta(hours=5)]),
    (uuid.UUID, [uuid.UUID(int=5)]),
    (pathlib.PurePosixPath, [pathlib.PurePosixPath("a/b")]),
    (ipaddress.IPv4Address, [ipaddress.ip_address("1.2.3.4")]),
    (Colour, list(Colour)),
    (Rank, list(Rank)),
    (Literal["a", 1, None, True], ["a", 1, None, True]),
    (Literal[Rank.LOW, "z"], [Rank.LOW, "z"]),
    (list[int], [[], [1, 2]]),
    (tuple[int, str], [(1, "a")]),
    (collections.deque[int], [collections.deque([1])]),
    (dict, [{"a": [1]}]),
    (dict[str, int], [{"a": 1}]),
    (dict[int, str], [{-10: "a"}]),
    (dict[float, int], [{1.5: 1}]),
    (dict[bool, int], [{True: 1}]),
    (dict[Code, int], [{Code.A: 1}]),
    (dict[Literal["x", "y"], int], [{"x": 1}]),
    (dict[dt.date, int], [{dt.date(2020, 1, 1): 1}]),
    (dict[Decimal, int], [{Decimal("1.5"): 1}]),
    (dict[Annotated[str, Field(pattern="^[ab]+$")], int], [{"ab": 1}]),
    (dict[Annotated[str, Field(pattern="^[ab]+$", max_length=3)], int], [{"ab": 1}]),
    (collections.Counter[int], [collections.Counter({3: 1})]),
    (collections.OrderedDict[int, str], [collections.OrderedDict({3: "a"})]),
    (Pair, [Pair(1, True)]),
    (Modern, [{"a": 1}, {"a": 1, "b": True}]),
    (Outside, [{"inside": {"a": 1}, "more": [None]}]),
    (Line, [Line((Point(1, 2), Point(3, 4)), "a", Colour.RED)]),
    (Cat | Dog, [Cat(kind="cat", lives=3), Dog(kind="dog", name="x")]),
    (Moment, [Moment(at=dt.datetime(2020, 1, 2, tzinfo=dt.UTC), price=Decimal("12.5"))]),
    (RootModel[list[int]], [RootModel[list[int]]([1])]),
]


@pytest.mark.parametrize(("kind", "values"), EXACT, ids=[str(kind) for kind, _ in EXACT])
def test_values_come_back_from_their_text(kind: Any, values: list[Any]) -> None:
    grammar, decoder = schema_type(kind, param="schema")
    compiled = COMPILER.compile(grammar)
    adapter: TypeAdapter[Any] = TypeAdapter(readable(kind))
    for value in values:
        text = adapter.dump_json(value, by_alias=True, exclude_unset=isinstance(value, BaseModel))
        found = decoder.parse(text.decode())
        assert (type(found), found) == (type(value), value)
        spaced = json.dumps(json.loads(text), ensure_ascii=False)
        assert isinstance(value, float) or accepts(compiled, spaced), spaced
    for seed in range(8):
        drawn = walk(compiled, random.Random(seed))
        if drawn is not None:
            decoder.parse(drawn.decode())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (dict[Annotated[str, Field(pattern="^[ab]+$")], int], '{"c": 1}'),
        (dict[Annotated[str, Field(pattern="^[ab]+$")], int], '{"a": "no int"}'),
        (dict[Annotated[str, Field(pattern="^[ab]+$", max_length=3)], int], '{"abab": 1}'),
        (dict[Decimal, int], '{"one": 1}'),
        (collections.Counter[int], '{"a": 1}'),
        (collections.OrderedDict[int, str], '{"a": "b"}'),
    ],
)
def test_dicts_hold_no_other_keys(kind: Any, text: str) -> None:
    grammar, decoder = schema_type(kind, param="schema")
    assert not accepts(COMPILER.compile(grammar), text)
    with pytest.raises(ValueError, match="validation error"):
        decoder.parse(text)


class Pairs(enum.Enum):
    A = (1, 2)


class Short(typing.TypedDict):
    __pydantic_config__ = ConfigDict(str_max_length=2)  # type: ignore[misc]
    v: str


def model(kind: Any, field: Any = ..., **config: Any) -> Any:
    """A model with one field `v`."""
    return create_model("Made", __config__=ConfigDict(**config), v=(kind, field))  # type: ignore[call-overload]


def at_least(kind: Any, least: int) -> Any:
    return Annotated[kind, Field(min_length=least)]


TWO_TO_THREE = Field(min_length=2, max_length=3)


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        (Annotated[bytes, TWO_TO_THREE], ['"ab"'], ['"日本"', '"é"', '"abcd"']),
        (
            model(Annotated[str, TWO_TO_THREE], str_strip_whitespace=True),
            ['{"v": "a b"}'],
            ['{"v": "  a"}', '{"v": "a  "}', '{"v": "\x85ab"}'],
        ),
        (model(str, str_strip_whitespace=True, str_min_length=1), ['{"v": "a"}'], ['{"v": " "}']),
        (
            model(at_least(SecretStr, 2), str_strip_whitespace=True),
            ['{"v": "ab"}'],
            ['{"v": " b"}'],
        ),
        (
            Annotated[str, StringConstraints(strip_whitespace=True, pattern="^.a?$")],
            ['"ba"', '"b"'],
            ['" a"', '" "'],
        ),
        (
            dict[Annotated[str, StringConstraints(strip_whitespace=True, pattern="^.a?$")], int],
            ['{"ba": 1}'],
            ['{" a": 1}'],
        ),
        (model(str, str_to_lower=True, str_max_length=2), ['{"v": "AB"}'], ['{"v": "ABC"}']),
        (Short, ['{"v": "ab"}'], ['{"v": "abc"}']),
        (Annotated[str, Field(pattern=r"^\D\W$")], ['"a-"', '"- "'], ['"٣-"', '"aé"', '"a\u200d"']),
        (Annotated[str, Field(pattern=r"^[^\d]$")], ['"é"'], ['"٣"']),
        (Annotated[str, Field(pattern=re.compile(r"^[^\w]$"))], ['"-"'], ['"é"', '"²"']),
        (Annotated[str, Field(pattern=r"^\S\s$")], ['"é "'], ['"\x85 "', '"a\ufeff"']),
        (dict[Annotated[str, Field(pattern=r"^\D$")], int], ['{"é": 1}'], ['{"٣": 1}']),
        (Annotated[str, Field(pattern=r"^\d\w$")], ['"1a"'], ['"٣a"', '"1é"']),
        (FiniteFloat, ["0.5", "-3"], ["1e999"]),
        (Annotated[FiniteFloat, Field(gt=0)], ["0.5"], ["1e999", "0"]),
        (model(float, allow_inf_nan=False), ['{"v": 1}'], ['{"v": -1e400}']),
        (
            model(int, Field(validation_alias=AliasChoices(AliasPath("a", 0), "b"))),
            ['{"b": 1}'],
            ['{"v": 1}', '{"a": [1]}'],
        ),
        (
            model(int, Field(alias="a"), validate_by_name=True, validate_by_alias=False),
            ['{"v": 1}'],
            ['{"a": 1}'],
        ),
        (
            model(int, Field(validation_alias=AliasPath("a", 0)), validate_by_name=True),
            ['{"v": 1}'],
            ['{"a": [1]}'],
        ),
        (at_least(set[Literal[2, True]], 2), ["[2, true]"], ["[2]", "[1, true]"]),
        (at_least(set[bool | Literal["a"]], 3), ['["a", true, false]'], ["[true, false]"]),
        (at_least(dict[Code, int], 2), ['{"a": 1, "b": 2}'], ['{"a": 1, "a": 2}']),
        (at_least(dict[int, int], 1), ['{"7": 1}'], ["{}"]),
    ],
    ids=str,
)
def test_what_a_check_refuses_is_never_generated(
    kind: Any, fitting: list[str], others: list[str]
) -> None:
    grammar, decoder = schema_type(kind, param="schema")
    compiled = COMPILER.compile(grammar)
    assert [accepts(compiled, text) for text in fitting] == [True] * len(fitting)
    assert [accepts(compiled, text) for text in others] == [False] * len(others)
    for text in fitting:
        decoder.parse(text)
    for seed in range(8):
        drawn = walk(compiled, random.Random(seed))
        if drawn is not None:
            decoder.parse(drawn.decode())


@pytest.mark.parametrize(
    "kind",
    [
        Pairs,
        Literal[b"x"],
        dict[tuple[int, int], int],
        dict[Rank, int],
        dict[None, int],
        dict[Annotated[int, Field(ge=0)], int],
        typing.Iterable[int],
        Json[int],
        PastDate,
        Annotated[dt.datetime, Field(gt=dt.datetime(2020, 1, 1))],
        Annotated[dt.timedelta, Field(gt=dt.timedelta(1))],
        Annotated[Decimal, Field(gt=1)],
        Annotated[Decimal, Field(max_digits=5)],
        Annotated[Decimal, Field(max_digits=2, decimal_places=2)],
        Fraction,
        ipaddress.IPv4Network,
        Base64Bytes,
        list[type[int]],
        UUID1,
        dict[UUID1, int],
        HttpUrl,
        AnyUrl,
        PostgresDsn,
        ImportString,
        ByteSize,
        re.Pattern,
        typing.Hashable,
        typing.TypeVar("T"),
        list[typing.TypeVar("T")],  # type: ignore[misc]
        Annotated[complex, Field(ge=1)],
        Annotated[pathlib.Path, Field(max_length=3)],
        Annotated[int | str, Field(ge=0)],
        Annotated[Literal[1, 2], Field(ge=2)],
        Annotated[str, Field(pattern=re.compile("^[^a]$", re.IGNORECASE))],
        Annotated[str, Field(pattern=re.compile("a b", re.VERBOSE))],
        model(bytes, val_json_bytes="base64"),
        model(list[bytes], val_json_bytes="hex"),
        model(int, Field(validation_alias=AliasPath("a", 0))),
        model(int, Field(validation_alias=AliasPath("a"))),
        model(int, Field(3, validation_alias=AliasChoices(AliasPath("a", 0), AliasPath("b", "c")))),
        at_least(set[Literal[1, True]], 2),
        at_least(frozenset[bool | Literal["a", 0]], 2),
        at_least(set[Rank | bool], 2),
        at_least(dict[bool, int], 2),
        at_least(dict[int, int], 2),
        at_least(dict[Decimal, int], 2),
        at_least(dict[Annotated[str, Field(pattern="^[ab]$")], int], 2),
    ],
    ids=str,
)
def test_types_that_json_does_not_pin_down_are_refused(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="which no JSON schema pins down"):
        sl.gen("x", schema=kind)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Annotated[typing.Sequence[int], Field(min_length=2)], "[1, 2]"),
        (Annotated[SecretStr, Field(max_length=3)], '"abc"'),
        (Annotated[str, AfterValidator(str.upper), Field(max_length=3)], '"abc"'),
        (collections.defaultdict[str, list[int]], '{"a": [1]}'),
        (Secret[int], "1"),
        (Annotated[HttpUrl, WithJsonSchema({"enum": ["http://a.b/"]})], '"http://a.b/"'),
    ],
    ids=str,
)
def test_types_whose_schema_shows_every_check_are_taken(kind: Any, text: str) -> None:
    grammar, decoder = schema_type(kind, param="schema")
    assert accepts(COMPILER.compile(grammar), text)
    decoder.parse(text)


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


def test_a_type_that_can_not_be_built_is_refused_with_its_cause() -> None:
    class Broken:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return {"type": "no such kind"}

    with pytest.raises(InvalidRequest, match="can't be described as a JSON schema") as error:
        sl.gen("x", schema=Broken)
    assert error.value.__cause__ is not None
    assert str(error.value.where).startswith("test_lang_types.py:")
