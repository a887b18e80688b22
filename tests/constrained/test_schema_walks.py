"""Random schemas over every rewritten keyword: masks and instances against jsonschema."""

from __future__ import annotations

import json
import random
from itertools import islice, permutations, product
from typing import Any

import jsonschema
import pytest
from support.grammar_walk import accepts, compiled, walk
from support.random_schemas import random_schema, random_value

from stolon.constrained import Grammar
from stolon.errors import GrammarError, UnsatisfiableGrammar

SEEDS = 12
SCHEMAS = 5


def orders(value: Any) -> Any:
    """The value with the members of every object in every order."""
    if isinstance(value, list):
        yield from (list(v) for v in product(*(list(orders(item)) for item in value)))
    elif isinstance(value, dict):
        for names in permutations(value):
            for items in product(*(list(orders(value[n])) for n in names)):
                yield dict(zip(names, items, strict=True))
    else:
        yield value


def text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def attempt(schema: Any) -> Grammar | None:
    """The grammar; None for a schema that nothing satisfies. Other refusals skip the schema."""
    try:
        return compiled("json_schema", json.dumps(schema))
    except UnsatisfiableGrammar:
        return None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schemas(seed: int) -> None:
    rng = random.Random(seed)
    checked = 0
    while checked < SCHEMAS:
        schema = random_schema(rng, rng.choice((1, 2, 2)))
        validator = jsonschema.Draft202012Validator(schema)
        try:
            grammar = attempt(schema)
        except GrammarError:
            continue
        checked += 1
        assert grammar is None or not accepts(grammar, ""), schema
        for _ in range(8):
            value = random_value(rng)
            valid = validator.is_valid(value)
            taken = grammar is not None and accepts(grammar, text_of(value))
            assert valid or not taken, f"{schema} must not accept {value}"
            if valid and not taken:
                assert grammar is not None, f"{schema} is satisfied by {value}"
                found = any(accepts(grammar, text_of(v)) for v in islice(orders(value), 5000))
                assert found, f"{schema} must accept {value} in some order of its members"
        for _ in range(2 if grammar is not None else 0):
            assert grammar is not None
            text = walk(grammar, rng, limit=120)
            assert text is None or validator.is_valid(json.loads(text)), (schema, text)


@pytest.mark.parametrize(
    "schema",
    [
        {
            "allOf": [
                {"enum": [{"foo": 1}]},
                {"not": {"patternProperties": {"f": {"type": "null"}}}},
            ]
        },
        {"if": {"patternProperties": {"f": {"type": "string"}}}, "unevaluatedProperties": False},
    ],
    ids=str,
)
def test_an_impossible_case_is_no_empty_text(schema: Any) -> None:
    grammar = compiled("json_schema", json.dumps(schema))
    assert not accepts(grammar, "")
    assert not accepts(grammar, '{"k": ')
