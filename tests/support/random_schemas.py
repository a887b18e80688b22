"""Random JSON Schemas over every keyword that is rewritten, and random small values."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("a", "b", "ab", "c")
PATTERNS = ("^a", "b$", "^[ab]+$", "c", "^.{2}$", "^(a|c)$")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, -1, 1.5, "a", "b", "ab", "c", ""),
    *([], [1], ["a", "b"], {}, {"a": 1}, {"a": "b", "b": 1}),
)


def random_schema(rng: random.Random, depth: int = 2) -> Any:
    """A schema of a few keywords; `depth` levels may nest."""
    if depth == 0 or rng.random() < 0.1:
        return _leaf(rng)
    schema: dict[str, Any] = {}
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        schema.update(rng.choice(_KEYWORDS)(rng, depth - 1))
    if rng.random() < 0.4:
        schema.setdefault("type", rng.choice(("object", "array", "object", "integer", "string")))
    return schema


def _leaf(rng: random.Random) -> Any:
    return rng.choice(
        (
            True,
            False,
            {},
            {"type": rng.choice(("null", "boolean", "integer", "number", "string", "array"))},
            {"type": ["string", "integer"]},
            {"const": rng.choice(VALUES)},
            {"enum": rng.sample(VALUES, 3)},
            {"minimum": rng.choice((0, 1, 1.5))},
            {"exclusiveMaximum": rng.choice((1, 2, 0.5))},
            {"multipleOf": rng.choice((2, 3, 0.5))},
            {"pattern": rng.choice(PATTERNS)},
            {"minLength": 1, "maxLength": rng.choice((1, 2))},
            {"required": rng.sample(NAMES, 1)},
            {"maxItems": rng.choice((0, 1, 2))},
            {"minItems": rng.choice((1, 2))},
        )
    )


def _plain(rng: random.Random) -> dict[str, Any]:
    leaf = _leaf(rng)
    return leaf if isinstance(leaf, dict) else {}


def _some(rng: random.Random, depth: int, low: int, high: int) -> list[Any]:
    return [random_schema(rng, depth) for _ in range(rng.randint(low, high))]


def _named(rng: random.Random, depth: int, names: tuple[str, ...]) -> dict[str, Any]:
    return {n: random_schema(rng, depth) for n in rng.sample(names, rng.randint(1, 2))}


_KEYWORDS = (
    lambda r, d: {"allOf": _some(r, d, 1, 2)},
    lambda r, d: {"anyOf": _some(r, d, 1, 3)},
    lambda r, d: {"oneOf": _some(r, d, 1, 3)},
    lambda r, d: {"not": random_schema(r, d)},
    lambda r, d: {"if": random_schema(r, d), "then": random_schema(r, d)},
    lambda r, d: {"if": random_schema(r, d), "else": random_schema(r, d)},
    lambda r, d: {"properties": _named(r, d, NAMES)},
    lambda r, d: {"properties": _named(r, d, NAMES), "required": r.sample(NAMES, 1)},
    lambda r, d: {"patternProperties": _named(r, d, PATTERNS)},
    lambda r, d: {"additionalProperties": random_schema(r, d)},
    lambda r, d: {"propertyNames": random_schema(r, d)},
    lambda r, d: {"dependentRequired": {r.choice(NAMES): r.sample(NAMES, 1)}},
    lambda r, d: {"dependentSchemas": {r.choice(NAMES): random_schema(r, d)}},
    lambda r, _: {"minProperties": 1, "maxProperties": r.choice((1, 2))},
    lambda r, d: {"prefixItems": _some(r, d, 1, 2)},
    lambda r, d: {"items": random_schema(r, d)},
    lambda r, d: {"contains": random_schema(r, d)},
    lambda r, d: {"contains": random_schema(r, d), "minContains": r.choice((0, 2))},
    lambda r, d: {"contains": random_schema(r, d), "maxContains": r.choice((1, 2))},
    lambda r, _: {"uniqueItems": True, "items": {"enum": r.sample(VALUES[:12], 3)}},
    lambda r, _: {"minItems": r.choice((0, 1)), "maxItems": r.choice((1, 2, 3))},
    lambda r, d: {"unevaluatedProperties": random_schema(r, d)},
    lambda r, d: {"unevaluatedItems": random_schema(r, d)},
    lambda r, _: _plain(r),
    lambda r, _: {"type": r.choice(("object", "array"))},
)


def random_value(rng: random.Random, depth: int = 2) -> Any:
    """A small value; members are in the order of `NAMES`."""
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return rng.choice(VALUES)
    if kind < 0.6:
        return [random_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    names = [n for n in (*NAMES, "x") if rng.random() < 0.4]
    return {n: random_value(rng, depth - 1) for n in names}
