"""One schema for each keyword that is rewritten, with texts that must match and texts that must not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.grammar_walk import accepts, compiled, token

from stolon.errors import GrammarError, UnsatisfiableGrammar

OBJ, ARR, INT, NUM = ({"type": t} for t in ("object", "array", "integer", "number"))
TREE = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"v": INT, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["v"],
            "additionalProperties": False,
        }
    }
}

TABLE: dict[str, tuple[Any, list[str], list[str]]] = {
    "not": ({"not": {"type": ["string", "array"]}}, ["1", "null", "{}"], ['"a"', "[]"]),
    "not required": ({**OBJ, "not": {"required": ["a"]}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    "not both": (
        {**OBJ, "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}},
        ["{}", '{"a": 1}', '{"b": 1}'],
        ['{"a": 1, "b": 1}'],
    ),
    "not const": ({**INT, "not": {"enum": [0, 7]}}, ["1", "-7", "70"], ["0", "7"]),
    "not words": (
        {"type": "string", "not": {"enum": ["ab", "c"]}},
        ['"a"', '"abc"', '""', '"é\\n"'],
        ['"ab"', '"c"'],
    ),
    "not integer": ({**NUM, "not": INT, "minimum": 1}, ["1.5", "20.25"], ["2", "0.5", "3.0"]),
    "not multipleOf": ({**INT, "not": {"multipleOf": 3}}, ["1", "-4", "100"], ["0", "3", "-9"]),
    "not recursive": (
        {"not": {"$ref": "#/$defs/tree"}, **OBJ, **TREE},
        ["{}", '{"v": 1, "x": 2}', '{"v": 1, "kids": [{"kids": []}]}'],
        ['{"v": 1}', '{"v": 1, "kids": [{"v": 2, "kids": []}]}'],
    ),
    "not itself, one level down": (
        {"type": "array", "items": {"not": {"$ref": "#"}}},
        ["[]", "[1]", "[[[]], {}]", "[[[[[]]]], 2]"],
        ["[[]]", "[1, [2]]", "1"],
    ),
    "itself and more, one level down": (
        {
            **OBJ,
            "properties": {"a": {"$ref": "#"}, "b": INT},
            "allOf": [{"properties": {"a": {"required": ["b"]}}}],
        },
        ["{}", '{"b": 1}', '{"a": {"a": {"b": 2}, "b": 1}}'],
        ['{"a": {}}', '{"a": {"a": {}, "b": 1}}', '{"a": 1}'],
    ),
    "oneOf overlapping": ({"oneOf": [INT, {"minimum": 2}]}, ["1", "2.5", '"a"'], ["3", "1.5"]),
    "oneOf with a tag": (
        {
            "oneOf": [
                {"properties": {"k": {"const": "a"}, "x": INT}, "required": ["k"]},
                {"properties": {"k": {"const": "b"}, "x": NUM}, "required": ["k"]},
            ],
            **OBJ,
        },
        ['{"k": "a", "x": 1}', '{"k": "b", "x": 1.5}'],
        ['{"k": "a", "x": 1.5}', '{"x": 1}', '{"k": "c"}'],
    ),
    "if then else": (
        {
            **OBJ,
            "properties": {"k": {"enum": ["a", "b"]}, "x": INT},
            "if": {"properties": {"k": {"const": "a"}}, "required": ["k"]},
            "then": {"required": ["x"]},
            "else": {"properties": {"x": False}},
        },
        ['{"k": "a", "x": 1}', '{"k": "b"}', "{}"],
        ['{"k": "a"}', '{"k": "b", "x": 1}', '{"x": 1}'],
    ),
    "dependentRequired": (
        {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        ["{}", '{"b": 1}', '{"a": 1, "b": 1}', "3"],
        ['{"a": 1}', '{"a": 1, "c": 1}'],
    ),
    "dependentSchemas": (
        {"properties": {"a": {}, "b": {}}, "dependentSchemas": {"a": {"properties": {"b": INT}}}},
        ['{"a": 1}', '{"a": 1, "b": 2}', '{"b": "x"}'],
        ['{"a": 1, "b": "x"}'],
    ),
    "dependencies of draft 7": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"a": {}, "b": {}},
            "dependencies": {"a": ["b"]},
        },
        ['{"a": 1, "b": 1}', "{}"],
        ['{"a": 1}'],
    ),
    "propertyNames": (
        {**OBJ, "propertyNames": {"pattern": "^[ab]+$", "maxLength": 2}},
        ["{}", '{"ab": 1, "b": 2}'],
        ['{"c": 1}', '{"aba": 1}', '{"": 1}'],
    ),
    "overlapping patterns": (
        {**OBJ, "patternProperties": {"^a": {"minimum": 2}, "b$": {"maximum": 5}}},
        ['{"ab": 3}', '{"a": 9}', '{"b": 0}', '{"x": 99}'],
        ['{"ab": 9}', '{"ab": 0}', '{"a": 1}'],
    ),
    "minProperties": (
        {**OBJ, "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2}
        | {"additionalProperties": False},
        ['{"a": 1, "b": 1}', '{"a": 1, "c": 1}', '{"b": 1, "c": 1}'],
        ["{}", '{"a": 1}', '{"a": 1, "b": 1, "c": 1}'],
    ),
    "contains": (
        {**ARR, "contains": {"const": 5}, "maxItems": 3},
        ["[5]", "[1, 5]", "[5, 5, 5]", '["a", 1, 5]'],
        ["[]", "[1]", "[1, 2, 3, 5]"],
    ),
    "minContains, maxContains": (
        {**ARR, "contains": INT, "minContains": 2, "maxContains": 3},
        ["[1, 2]", '[1, "a", 2, null, 3]'],
        ["[]", "[1]", "[1, 2, 3, 4]"],
    ),
    "uniqueItems of an enum": (
        {**ARR, "items": {"enum": ["a", 1, None]}, "uniqueItems": True, "minItems": 1},
        ["[1]", '["a", 1]', '[null, 1, "a"]'],
        ["[]", "[1, 1]", '["a", 1, "a"]', '["a", 1, null, 1]'],
    ),
    "uniqueItems of a tuple": (
        {**ARR, "prefixItems": [{"enum": [1, 2]}] * 2, "items": False, "uniqueItems": True},
        ["[]", "[1]", "[1, 2]", "[2, 1]"],
        ["[1, 1]", "[2, 2]", "[1, 2, 1]"],
    ),
    "unevaluatedProperties": (
        {
            **OBJ,
            "properties": {"a": {}},
            "anyOf": [{"properties": {"b": INT}, "required": ["b"]}, {"properties": {"c": INT}}],
            "unevaluatedProperties": False,
        },
        ["{}", '{"a": 1, "b": 1}', '{"a": 1, "c": 1}', '{"b": 1, "c": 1}'],
        ['{"x": 1}', '{"b": "x"}', '{"b": 1, "c": "x"}'],
    ),
    "unevaluatedItems": (
        {**ARR, "prefixItems": [INT], "contains": {"const": "x"}, "unevaluatedItems": False},
        ['[1, "x"]', '[1, "x", "x"]'],
        ["[1]", '[1, "x", 2]', "[]"],
    ),
    "keywords without partners": (
        {**INT, "then": False, "else": False, "minContains": 3, "minimum": 1.0, "maxItems": 2.0},
        ["1", "5"],
        ["0"],
    ),
    "patterns of strings": (
        {"type": "string", "pattern": "^a", "not": {"pattern": "b$"}, "minLength": 2},
        ['"ac"', '"a\\"c"', '"abc"'],
        ['"ab"', '"a"', '"cb"'],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_rewritten(name: str) -> None:
    schema, matching, others = TABLE[name]
    for whitespace in ("pep", "compact"):
        grammar = compiled("json_schema", json.dumps(schema), whitespace=whitespace)
        texts = {t: t if whitespace == "pep" else t.replace(" ", "") for t in matching + others}
        assert [t for t in matching if not accepts(grammar, texts[t])] == []
        assert [t for t in others if accepts(grammar, texts[t])] == []


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"not": {}},
        {"enum": []},
        {"type": "string", "enum": [1]},
        {"allOf": [{"const": 1}, {"const": 2}]},
        {"type": "integer", "minimum": 3, "exclusiveMaximum": 4, "multipleOf": 2},
        {"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]},
        {
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"allOf": [INT, {"const": "x"}]}},
        },
        {"type": "array", "items": False, "minItems": 1},
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
    ],
    ids=json.dumps,
)
def test_what_nothing_satisfies_is_told_apart(schema: Any) -> None:
    with pytest.raises(UnsatisfiableGrammar):
        compiled("json_schema", json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "dropped", "text"),
    [
        ({**ARR, "uniqueItems": True, "maxItems": 2}, ("/uniqueItems",), "[1, 1]"),
        ({**OBJ, "properties": {"a": {"pattern": "(?=x)"}}}, ("/properties/a/pattern",), "{}"),
        ({**OBJ, "not": {"properties": {"a": {"pattern": "(?=x)"}}}}, ("/not",), '{"a": "x"}'),
        (
            {"oneOf": [{"type": "string", "format": "regex"}, {"type": "string"}]},
            ("/oneOf", "/oneOf/0/format"),
            '"("',
        ),
        ({"$ref": "https://example.com/x", **INT}, ("/$ref",), "1"),
    ],
    ids=json.dumps,
)
def test_best_effort_lists_what_it_leaves_out(
    schema: Any, dropped: tuple[str, ...], text: str
) -> None:
    with pytest.raises(GrammarError):
        compiled("json_schema", json.dumps(schema))
    grammar: Any = compiled("json_schema", json.dumps(schema), best_effort=True)
    assert grammar.dropped == dropped
    assert accepts(grammar, text)
    exact: Any = compiled("json_schema", json.dumps({"type": "string"}), best_effort=True)
    assert exact.dropped == ()


def text_of(tokens: list[int]) -> bytes:
    return b"".join(token(t) for t in tokens)


def test_forced_runs_of_rewritten_schemas() -> None:
    schema = {
        **OBJ,
        "properties": {"name": {"type": "string"}, "kind": {"const": "a"}},
        "required": ["name", "kind"],
        "additionalProperties": False,
        "not": {"properties": {"name": {"const": "x"}}},
    }
    matcher = compiled("json_schema", json.dumps(schema)).start()
    assert text_of(matcher.forced()).startswith(b'{"name":')
    for byte in b'{"name": "ab"':
        assert matcher.accept(byte)
    assert text_of(matcher.forced()) == b', "kind": "a"}'
