"""Floats with bounds: whatever the grammar allows is read within them, though it is rounded."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from support.grammar_walk import COMPILER, accepts, walk

from stolon.lang.typed import schema_type

NINES = "0." + 20 * "9"
ZEROS = "0." + 400 * "0" + "1"


def bounded(kind: Any = float, **bounds: Any) -> Any:
    return Annotated[kind, Field(**bounds)]


@pytest.mark.parametrize(
    ("kind", "within", "beyond"),
    [
        (
            bounded(gt=0, lt=1),
            ["0.5", "0.9", "0.9999999999999999", "0.0000001"],
            [NINES, ZEROS, "0", "1"],
        ),
        (bounded(gt=0), ["1", "0.000000000000000000000000001"], [ZEROS, "0.0", "-1"]),
        (bounded(lt=0), ["-1", "-0.000000000000000000000000001"], [f"-{ZEROS}", "0"]),
        (bounded(lt=0.3), ["0.2999999999999", "-7"], ["0.29999999999999999999", "0.3"]),
        (bounded(gt=-1), ["-0.999999999999", "4.25"], [f"-{NINES}", "-1"]),
        (bounded(gt=100, le=200), ["100.5", "200"], ["100.00000000000000000001", "100"]),
        (bounded(gt=0, ge=0.5), ["0.5"], ["0.25"]),
        (bounded(ge=0.1, le=0.3), ["0.1", "0.3", "0.10000000000000000001"], ["0.09", "0.31"]),
        (bounded(lt=2**53 + 1), ["9007199254740"], ["9007199254740992"]),
        (bounded(gt=2**53 + 1), ["90071992547409940"], ["9007199254740992", "9007199254740993"]),
        (bounded(gt=1e20), ["1000000000000000000000"], ["100000000000000000001"]),
        (bounded(gt=0, lt=1, multiple_of=0.25), ["0.25", "0.75"], ["0", "1", "0.3"]),
        (bounded(FiniteFloat, lt=1), ["0.5", "-3"], [NINES, "-1e400"]),
    ],
    ids=str,
)
def test_no_text_is_read_beyond_a_bound(kind: Any, within: list[str], beyond: list[str]) -> None:
    grammar, decoder = schema_type(kind, param="schema")
    compiled = COMPILER.compile(grammar)
    assert [text for text in within if not accepts(compiled, text)] == []
    assert [text for text in beyond if accepts(compiled, text)] == []
    for text in within:
        decoder.parse(text)
    for seed in range(20):
        drawn = walk(compiled, random.Random(seed))
        if drawn is not None:
            decoder.parse(drawn.decode())


def test_every_text_at_the_edge_that_is_allowed_is_read() -> None:
    rng = random.Random(7)
    for _ in range(40):
        low = rng.choice((rng.uniform(-2, 2), rng.uniform(-1e6, 1e6), float(rng.randrange(-9, 9))))
        high = low + rng.choice((0.1, 1.0, 2.5))
        kind = bounded(gt=low, lt=high)
        compiled = COMPILER.compile(schema_type(kind, param="schema")[0])
        adapter: TypeAdapter[float] = TypeAdapter(kind)
        read = 0
        for bound, inwards in ((low, math.inf), (high, -math.inf)):
            inner = math.nextafter(bound, inwards)
            nearest = f"{Decimal(repr(inner)):f}"
            for text in (f"{bound:.18f}", f"{bound:.40f}", nearest, f"{inner:.40f}"):
                if accepts(compiled, text):
                    adapter.validate_json(text)
                    read += 1
        assert read, "the floats next to the bounds are allowed"
        with pytest.raises(ValidationError):
            adapter.validate_json(repr(low))
