"""What a type's checks refuse is never generated, and a type whose checks no schema shows is refused."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import ipaddress
import pathlib
import random
import re
import typing
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    UUID1,
    AfterValidator,
    AliasChoices,
    AliasPath,
    AnyUrl,
    Base64Bytes,
    ByteSize,
    ConfigDict,
    Field,
    FiniteFloat,
    HttpUrl,
    ImportString,
    Json,
    PastDate,
    PostgresDsn,
    Secret,
    SecretStr,
    StringConstraints,
    WithJsonSchema,
    create_model,
)
from support.grammar_walk import COMPILER, accepts, walk
from support.typed_kinds import (
    Code,
    Rank,
)

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang.typed import schema_type


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


def test_a_type_that_can_not_be_built_is_refused_with_its_cause() -> None:
    class Broken:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return {"type": "no such kind"}

    with pytest.raises(InvalidRequest, match="can't be described as a JSON schema") as error:
        sl.gen("x", schema=Broken)
    assert error.value.__cause__ is not None
    assert str(error.value.where).startswith("test_lang_types_refused.py:")
