"""Sets of numbers, and their decimal notations as regexes."""

from __future__ import annotations

import re
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.grammar_walk import accepts, compiled

from stolon.constrained.schema.decimals import FRACTION, at_least, at_most, multiple_of
from stolon.constrained.schema.numbers import Numbers, all_but, both
from stolon.errors import GrammarError

DECIMALS = st.decimals(-1100, 1100, allow_nan=False, places=2).map(lambda d: Fraction(str(d)))
BOUNDS = st.none() | DECIMALS


@st.composite
def sets(draw: st.DrawFn) -> Numbers:
    steps = st.sampled_from((1, 2, 3, Fraction(1, 2), Fraction(3, 4)))
    return Numbers(
        low=draw(BOUNDS),
        high=draw(BOUNDS),
        low_open=draw(st.booleans()),
        high_open=draw(st.booleans()),
        step=draw(st.none() | steps.map(Fraction)),
        indivisible=frozenset(draw(st.sets(steps.map(Fraction), max_size=1))),
    )


def holds(numbers: Numbers, x: Fraction) -> bool:
    low, high = numbers.low, numbers.high
    return (
        (low is None or x > low or (x == low and not numbers.low_open))
        and (high is None or x < high or (x == high and not numbers.high_open))
        and (numbers.step is None or (x / numbers.step).denominator == 1)
        and all((x / n).denominator != 1 for n in numbers.indivisible)
    )


@settings(max_examples=120, deadline=None)
@given(sets(), sets(), st.lists(DECIMALS | st.integers(-20, 20).map(Fraction), min_size=3))
def test_algebra(a: Numbers, b: Numbers, points: list[Fraction]) -> None:
    points += [x for s in (a, b) for x in (s.low, s.high) if x is not None]
    for x in points:
        assert any(holds(s, x) for s in a.simplified()) == holds(a, x)
        assert any(holds(s, x) for s in both(a, b)) == (holds(a, x) and holds(b, x))
        assert any(holds(s, x) for s in a.complement()) == (not holds(a, x))


def test_all_but_points() -> None:
    parts = all_but([Fraction(2), Fraction(1)])
    assert [any(holds(p, Fraction(x)) for p in parts) for x in (0, 1, 2, 3)] == [1, 0, 0, 1]


@settings(max_examples=150, deadline=None)
@given(DECIMALS, st.booleans(), DECIMALS.filter(bool), st.integers(0, 2))
def test_bounds_as_regexes(bound: Fraction, strict: bool, x: Fraction, zeros: int) -> None:
    text = f"{float(x):.2f}".rstrip("0").rstrip(".")
    if "." in text:
        text += "0" * zeros
    lower, upper = at_least(bound, above=strict), at_most(bound, below=strict)
    assert lower is not None
    assert upper is not None
    assert bool(re.fullmatch(lower, text)) == (x > bound or (x == bound and not strict))
    assert bool(re.fullmatch(upper, text)) == (x < bound or (x == bound and not strict))
    assert bool(re.fullmatch(FRACTION, text)) == (x.denominator != 1)


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"multipleOf": 999_961}, "/multipleOf"),
        ({"properties": {"a": {"multipleOf": 604_800}}}, "/properties/a/multipleOf"),
        ({"multipleOf": 99_999.99}, "/multipleOf"),
        ({"allOf": [{"multipleOf": 9_973}, {"multipleOf": 97}]}, "/allOf/0/multipleOf"),
        ({"type": "integer", "not": {"multipleOf": 999_961}}, "/not/multipleOf"),
        ({"anyOf": [{"multipleOf": 49_999 - 2 * i} for i in range(20)]}, None),
    ],
)
def test_divisors_with_too_many_remainders_are_refused_soon(schema: Any, where: str | None) -> None:
    begun = time.process_time()
    with pytest.raises(GrammarError) as caught:
        compiled("json_schema", schema)
    assert time.process_time() - begun < 1.0
    assert caught.value.where == where or where is None


@pytest.mark.parametrize("divisor", [3_600, 9_973, 86_400, 1_000_000, 2.5, 0.01, 1e-10])
def test_divisors_in_use_are_enforced(divisor: float) -> None:
    good = Fraction(str(divisor)) * 7
    text = f"{float(good):.11f}".rstrip("0").rstrip(".")
    grammar = compiled("json_schema", {"type": "number", "multipleOf": divisor})
    assert accepts(grammar, text)
    if divisor > 1:
        assert not accepts(grammar, f"{text}1")


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 5, 6, 8, 10, 12, 25, 30, 304, 1000])
def test_multiples_as_regexes(divisor: int) -> None:
    regexes = multiple_of(divisor)
    if regexes is None:
        assert divisor == 304  # 19 times 16: the remainders of 19 are too many
        return
    for number in (*range(-40, 1300), 10**9, 12_000, 7_777_777):
        found = all(re.fullmatch(regex, str(number)) for regex in regexes)
        assert found == (number % divisor == 0), number


@pytest.mark.parametrize(
    ("bounds", "within", "beyond"),
    [
        ({"maximum": 0.9999999999999999}, ["0.9999999999999999", "0.9", "-2"], ["1", "1.0"]),
        ({"minimum": 100.00000000000001}, ["100.00000000000001", "101"], ["100", "100.0"]),
        ({"exclusiveMaximum": -0.9999999999999998}, ["-1"], ["-0.9999999999999998", "-0.9"]),
        ({"minimum": 1.0000000000000002e-30}, ["0.1"], [f"0.{29 * '0'}1", "0"]),
        ({"minimum": 1.0000000000000002e-300}, ["0.1"], [f"0.{299 * '0'}1", "0"]),
    ],
)
def test_bounds_of_many_digits_are_those_written(
    bounds: Any, within: list[str], beyond: list[str]
) -> None:
    schemas = ({"type": "number", **bounds}, {"not": {"not": {"type": "number", **bounds}}})
    for grammar in [compiled("json_schema", schema) for schema in schemas]:
        assert [accepts(grammar, text) for text in within] == [True] * len(within)
        assert [accepts(grammar, text) for text in beyond] == [False] * len(beyond)
