"""Closed schemas as regex trees: the same values as a JSON Schema validator accepts, in one spelling each."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from support.grammar_walk import COMPILER, accepts, compiled

from stolon.constrained.fsm import FsmGrammar, compile_fsm
from stolon.constrained.schema.integers import integers
from stolon.constrained.schema.regular import schema_tree
from stolon.errors import UnsatisfiableGrammar


def automaton(tree: Any) -> FsmGrammar:
    def no_fallback() -> Any:
        raise AssertionError("the automaton is too large")

    grammar = compile_fsm(tree, COMPILER.vocabulary, COMPILER.pool, no_fallback)
    assert grammar is not None
    return grammar


@pytest.mark.parametrize(
    ("low", "high"),
    [
        *((0, 0), (0, 9), (7, 23), (99, 100), (10, 99), (-5, 3), (-120, -99), (-10, None)),
        *((None, 12), (None, -7), (1, None), (101, 1099), (199, 2001), (None, 0), (0, None)),
    ],
)
def test_integers_between_bounds(low: int | None, high: int | None) -> None:
    grammar = automaton(integers(low, high))
    for value in range(-1300, 2300):
        inside = (low is None or value >= low) and (high is None or value <= high)
        assert accepts(grammar, str(value)) == inside, value
    for wrong in ("", "-", "00", "01", "-01", "1.0", "+1", "1e1", " 1"):
        assert not accepts(grammar, wrong)


PERSON = {
    "type": "object",
    "title": "Person",
    "properties": {
        "nick": {"type": "string", "minLength": 1, "maxLength": 3},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 130},
        "kind": {"enum": ["a", "b\n", 3, None, True]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 2},
        "code": {"type": ["string", "null"], "pattern": "^[A-Z]{2}"},
        "size": {"type": "number"},
    },
    "required": ["age", "tags"],
    "additionalProperties": False,
    "$defs": {"tag": {"anyOf": [{"type": "boolean"}, {"type": "string", "format": "date"}]}},
}
VALUES: dict[str, list[Any]] = {
    "nick": ["", "x", 'a"\\', "äöü", "long", "\x07", 1, None],
    "age": [0, 7, 129, 130, -1, "7", None],
    "kind": ["a", "b\n", 3, None, True, False, "c", 1],
    "tags": [[], [True], ["2024-02-29", False], ["2023-02-29"], [True, True, True], [1]],
    "code": ["AB", "ABc", "", "aB", None, 3],
    "size": [0, 1.5, -2e9, "1", None],
}


def test_values_are_those_of_a_validator() -> None:
    tree = schema_tree(PERSON, "pep")
    assert tree is not None
    grammar = automaton(tree)
    validator = jsonschema.Draft202012Validator(
        PERSON, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    draw = random.Random(3)
    found = [0, 0]
    for _ in range(6000):
        names = [name for name in VALUES if draw.random() < 0.8]
        value = {name: draw.choice(VALUES[name]) for name in names}
        valid = validator.is_valid(value)
        assert accepts(grammar, json.dumps(value, ensure_ascii=False)) == valid, value
        found[valid] += 1
    assert min(found) > 50
    assert not accepts(grammar, '{"tags": [true], "age": 1}')  # members come in the schema's order


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "null"}}},
        {"type": "object", "properties": {}, "additionalProperties": False, "minProperties": 1},
        {"$ref": "#"},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "string", "pattern": "a", "maxLength": 3},
        {"type": "number", "minimum": 0},
        {"type": "integer", "multipleOf": 2},
        {"type": "array"},
        {"const": 1.0},
        {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
        {"type": "string", "format": "idn-email"},
        True,
    ],
)
def test_what_is_left_to_others(schema: Any) -> None:
    assert schema_tree(schema, "pep") is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 1},
        {"type": "string", "enum": [1, 2]},
    ],
)
def test_contradictions_match_nothing(schema: Any) -> None:
    with pytest.raises(UnsatisfiableGrammar):
        compiled("json_schema", schema)


def test_a_closed_schema_is_followed_by_an_automaton() -> None:
    grammar = compiled("json_schema", PERSON, whitespace="compact")
    assert isinstance(grammar, FsmGrammar)
    assert accepts(grammar, '{"age":7,"tags":[true]}')
