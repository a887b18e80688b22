"""A refused type is named as it was written, with the field that it is in and the way to it."""

import datetime as dt
import enum
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pytest
import typing_extensions
from pydantic import (
    AwareDatetime,
    Base64Bytes,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    HttpUrl,
    IPvAnyAddress,
    Json,
    PastDate,
    model_validator,
)
from support.grammar_walk import COMPILER, accepts
from support.typed_kinds import Code, Colour, Rank

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang.typed import schema_type


class Inner(BaseModel):
    x: int
    when: Annotated[dt.date, Field(ge=dt.date(2020, 1, 1))]


class Twice(BaseModel):
    name: str
    some: list[Inner]
    other: dict[str, Inner]


class Node(BaseModel):
    children: "list[Node]"
    sizes: dict[str, tuple[int, ByteSize]] = {}


@dataclass
class Record:
    at: AwareDatetime | None


class Row(NamedTuple):
    n: int
    pattern: re.Pattern[str]


class Table(typing_extensions.TypedDict):
    rows: list[Row]


class Plain:
    pass


class Holder(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    thing: Plain


class Calls(BaseModel):
    back: Callable[[int], int]


class Chosen(BaseModel):
    colour: Literal[Colour.RED]


class Aliased(BaseModel):
    v: Annotated[bytes | None, "note"] | Base64Bytes


class Keyed(BaseModel):
    by: dict[tuple[int, int], int]


class Addressed(BaseModel):
    ip: IPvAnyAddress
    home: HttpUrl | int


class Wrapped(BaseModel):
    inner: Json[int] | Annotated[PastDate, "note"]


@pytest.mark.parametrize(
    ("kind", "is_what", "path"),
    [
        (Inner, "datetime.date (Inner.when) is a date with bounds", "Inner.when"),
        (Twice, "datetime.date (Inner.when) is a date with bounds", "Twice.some[].when"),
        (dict[str, Inner], "datetime.date (Inner.when) is a date with bounds", "dict[].when"),
        (Node, "ByteSize (Node.sizes) is a value that only Python", "Node.sizes[][1]"),
        (Record, "AwareDatetime (Record.at) is a datetime with bounds", "Record.at"),
        (Table, "re.Pattern[str] (Row.pattern) is ", "Table.rows[].pattern"),
        (Holder, "Plain (Holder.thing) is a value that JSON can't hold", "Holder.thing"),
        (Calls, "collections.abc.Callable[[int], int] (Calls.back) is a value", "Calls.back"),
        (Aliased, "Base64Bytes (Aliased.v) is a value that only Python can check", "Aliased.v"),
        (Keyed, "dict[tuple[int, int], int] (Keyed.by) is a dict with such keys", "Keyed.by"),
        (Addressed, "IPvAnyAddress (Addressed.ip) is a value that only", "Addressed.ip"),
        (list[HttpUrl], "HttpUrl is a URL", "list[]"),
        (Wrapped, "(Wrapped.inner) is JSON inside of a string", "Wrapped.inner"),
        (Chosen, "(Chosen.colour) is a Literal of Colour.RED", "Chosen.colour"),
        (dict[dt.timedelta, Row], "re.Pattern[str] (Row.pattern) is ", "dict[].pattern"),
        (ByteSize, "ByteSize is a value that only Python can check", None),
        (list[typing.TypeVar("T")], "list is the type variable ~T", None),  # type: ignore[misc]
    ],
    ids=str,
)
def test_the_place_of_a_refused_type_is_named(kind: Any, is_what: str, path: str | None) -> None:
    with pytest.raises(InvalidRequest, match="which no JSON schema pins down") as error:
        sl.gen("x", schema=kind)
    assert is_what in error.value.message
    where = str(error.value.where)
    assert re.fullmatch(
        r"test_lang_types_places\.py:\d+" + (f": {re.escape(path)}" if path else ""), where
    )


class Loose(enum.Enum):
    NONE = None
    ONE = 1


class First(BaseModel):
    v: Literal[Loose.ONE, "a"]


@dataclass
class Second:
    v: Annotated[Literal[Loose.NONE] | None, "note"]


@pytest.mark.parametrize("kind", [First, Second, list[First]], ids=str)
def test_a_literal_that_no_text_is_read_as_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="which pydantic does not find by its value"):
        sl.gen("x", schema=kind)


class Read(BaseModel):
    v: Literal[Code.A, Rank.LOW]


class Converted(BaseModel):
    v: Annotated[Literal[Colour.RED], BeforeValidator(Colour)]


class Whole(BaseModel):
    v: Literal[Colour.RED]

    @model_validator(mode="before")
    @classmethod
    def read(cls, data: Any) -> Any:
        return {"v": Colour(data["v"])}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Read, '{"v": "a"}', Code.A),
        (Read, '{"v": 1}', Rank.LOW),
        (Converted, '{"v": "red"}', Colour.RED),
        (Whole, '{"v": "red"}', Colour.RED),
    ],
)
def test_members_that_a_text_is_read_as_are_taken(kind: Any, text: str, value: Any) -> None:
    grammar, decoder = schema_type(kind, param="schema")
    assert accepts(COMPILER.compile(grammar), text)
    assert decoder.parse(text).v == value
