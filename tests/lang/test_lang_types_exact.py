"""Values of every type come back from their text as they were."""

from __future__ import annotations

import collections
import datetime as dt
import ipaddress
import json
import pathlib
import random
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    BaseModel,
    Field,
    RootModel,
    TypeAdapter,
)
from support.grammar_walk import COMPILER, accepts, walk
from support.typed_kinds import (
    Cat,
    Code,
    Colour,
    Dog,
    Line,
    Modern,
    Outside,
    Pair,
    Point,
    Rank,
)

from stolon.lang.readable_types import readable
from stolon.lang.typed import schema_type


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
