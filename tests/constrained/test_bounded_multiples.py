"""`multipleOf` beside bounds costs more than alone: what is too much is refused by name, place and limit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.engines import hash_engine

from stolon.errors import GrammarError

BOUNDS: list[dict[str, Any]] = [
    {"minimum": 3, "maximum": 10**9},
    {"minimum": 3},
    {"exclusiveMaximum": 1e15},
]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("kind", ["number", "integer"])
@pytest.mark.parametrize("step", [49_999, 86_400, 300_000])
def test_too_large_a_divisor_beside_bounds(step: int, kind: str, bounds: dict[str, Any]) -> None:
    inner = {"type": kind, "multipleOf": step, **bounds}
    schema = {"type": "object", "properties": {"n": inner}, "required": ["n"]}
    with hash_engine() as engine, pytest.raises(GrammarError) as caught:
        engine.generate("a", json_schema=json.dumps(schema))
    assert "'multipleOf'" in caught.value.message
    assert str(step) in caught.value.message
    assert caught.value.where == "/properties/n/multipleOf"
    assert "10,000" in (caught.value.hint or "")


@pytest.mark.parametrize("step", [9_973, 8_600, 0.01])
def test_what_is_accepted(step: float) -> None:
    schema = {"type": "number", "multipleOf": step, "minimum": 3, "maximum": 10**9}
    with hash_engine() as engine:
        text = engine.generate(
            "a", json_schema=json.dumps(schema), max_tokens=12, close_at_budget=True, seed=1
        ).text
    assert round(float(text) / step, 6) % 1 == 0
