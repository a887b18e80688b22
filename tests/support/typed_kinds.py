"""Types of every kind that a schema can be made from."""

from __future__ import annotations

import enum
import typing
from dataclasses import dataclass
from typing import Literal, NamedTuple, NewType, NotRequired

import typing_extensions
from pydantic import (
    BaseModel,
    Field,
)


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


class Code(enum.StrEnum):
    A = "a"
    B = "b"
