"""What llguidance is given of a schema that it enforces itself."""

from __future__ import annotations

import json
from typing import Any

from support.grammar_walk import accepts, compiled

from stolon.constrained.schema.direct import direct_schema
from stolon.constrained.schema.plan import json_source

URI, WORD, COUNT = {"type": "string", "format": "uri"}, {"type": "string"}, {"type": "integer"}


def test_annotations_and_unused_definitions_are_left_out() -> None:
    schema = {
        "title": "t",
        "properties": {"a": {"$ref": "#/$defs/a b"}, "title": {"description": "d", "type": "null"}},
        "$defs": {"a b": {"type": "array", "x-note": 1, "items": {"$ref": "#"}}, "unused": WORD},
        "additionalProperties": False,
    }
    assert direct_schema(schema) == {
        "properties": {"a": {"$ref": "#/$defs/d1"}, "title": {"type": "null"}},
        "additionalProperties": False,
        "$defs": {"d1": {"type": "array", "items": {"$ref": "#"}}},
    }


def test_what_is_said_twice_of_a_single_value_is_said_once() -> None:
    names = {"a": URI, "b": {**URI, "title": "b"}, "c": {"type": ["string", "null"]}, "d": COUNT}
    found = direct_schema({"properties": names, "additionalProperties": False, "items": COUNT})
    assert found is not None
    assert found["properties"]["a"] == found["properties"]["b"] == {"$ref": "#/$defs/s0"}
    assert found["properties"]["c"] == names["c"]
    assert found["properties"]["d"] == found["items"] == {"$ref": "#/$defs/s1"}
    assert found["$defs"]["s1"] == COUNT
    assert names["b"] == {**URI, "title": "b"}


def test_alternatives_that_exclude_each_other_keep_what_tells_them_apart() -> None:
    def branch(kind: dict[str, str]) -> dict[str, Any]:
        names = {"a": kind, "b": WORD, "c": URI, "d": URI}
        return {"properties": names, "required": ["a"], "additionalProperties": False}

    inline = direct_schema({"oneOf": [branch(COUNT), branch(WORD), branch(COUNT)]})
    assert inline is not None
    assert [one["properties"]["a"] for one in inline["oneOf"]] == [COUNT, WORD, COUNT]
    assert list(inline["$defs"]) == ["s0"]  # the pattern, which tells none apart
    referred = {
        "oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}],
        "$defs": {"x": branch(COUNT), "y": branch(WORD)},
    }
    found = direct_schema(referred)
    assert found is not None
    assert sorted(found["$defs"]) == ["d1", "d2", "s2"]
    grammar = compiled("json_schema", json.dumps({**referred, "type": "object"}))
    assert accepts(grammar, '{"a": 1, "b": "x", "d": "u:v"}')
    assert not accepts(grammar, '{"b": "x"}')


def test_a_format_keeps_a_pattern_and_a_length_beside_it() -> None:
    schema = {"type": "string", "format": "hostname", "maxLength": 5, "minLength": 2}
    assert direct_schema(schema) == {
        **{k: v for k, v in schema.items() if k != "format"},
        "pattern": direct_schema(schema)["pattern"],  # type: ignore[index]
    }
    both = compiled("json_schema", json.dumps({"items": {**schema, "pattern": "^a"}}))
    assert accepts(both, '["ab.c"]')
    for wrong in ('["b.c"]', '["a-"]', '["abcdef"]', '["a"]'):
        assert not accepts(both, wrong)


def test_the_source_says_the_same_as_the_schema() -> None:
    values = [
        2**63,
        -(10**39),
        1e16,
        5e-324,
        -0.0,
        0.1,
        'é\u2028\x7f\x00"\\/',
        None,
        True,
        {"a": []},
    ]
    [grammar] = json.loads(json_source({"enum": values}, "compact"))["grammars"]
    assert grammar["json_schema"]["enum"] == values
    assert grammar["json_schema"]["x-guidance"]["key_separator"] == ":"
