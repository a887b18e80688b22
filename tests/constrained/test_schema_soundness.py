"""JSON Schema: texts drawn from the masks validate; instances are judged as by jsonschema."""

from __future__ import annotations

import json
import random
from datetime import date, datetime
from datetime import time as dt_time
from typing import Any

import jsonschema
import pytest
from support.grammar_walk import accepts, compiled, walk

from stolon.errors import GrammarError, UnsatisfiableGrammar

INT, STR = {"type": "integer"}, {"type": "string"}
DATE = {"type": "string", "format": "date"}


def obj(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


SCHEMAS: list[Any] = [
    True,
    {},
    {"type": ["string", "null", "integer"]},
    {"properties": {"a": INT}},
    {"minimum": 3, "maximum": 12},
    {"type": "string", "minimum": 3, "maxLength": 4},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^a", "maxLength": 3},
    {"type": "string", "pattern": "b+c", "minLength": 4, "maxLength": 6},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "ipv4"},
    {"format": "email", "type": ["string", "null"]},
    {"type": "string", "format": "date", "pattern": "^20", "maxLength": 10},
    {"type": "integer", "minimum": -5, "exclusiveMaximum": 17},
    {"type": "integer", "multipleOf": 3},
    {"type": "integer", "multipleOf": 4, "minimum": 7, "maximum": 90},
    {"type": "number", "minimum": 0.5, "maximum": 2.25},
    {"type": "number", "multipleOf": 0.5},
    {"enum": [1, "a", {"b": [1]}, None, True]},
    {"enum": [1, "a", "b"], "type": "string"},
    {"enum": ["abc", "b", 5], "minLength": 2, "minimum": 6},
    {"const": {"a": [1, 2.5, "é"]}},
    {"anyOf": [INT, STR], "minimum": 3, "maxLength": 2},
    {"oneOf": [INT, STR, obj(["k"], k={"const": 1})]},
    {"allOf": [INT, {"minimum": 3}, {"maximum": 30}]},
    {"allOf": [obj(["a"], a=INT), obj(["b"], a={"minimum": 3}, b=STR)]},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], **obj(a=INT, b=INT)},
    obj(["a"], a=INT, b=obj(["c"], c=STR)),
    {"type": "object", "required": ["x", "y"], "properties": {"x": INT}},
    {**obj(["a"], a=INT, b=STR), "additionalProperties": False},
    {**obj(a=INT), "additionalProperties": STR},
    {"type": "object", "patternProperties": {"^a": INT, "^b": STR}, "additionalProperties": False},
    {"type": "object", "additionalProperties": INT, "minProperties": 1, "maxProperties": 2},
    {"type": "array", "items": INT, "minItems": 1, "maxItems": 3},
    obj(a=INT, b=STR, c={**INT, "title": "c"}, k=INT, x=obj(["c"], c=STR)),
    {**obj(a=DATE, b=DATE, q=DATE), "additionalProperties": DATE},
    {"oneOf": [obj(["a"], a=INT, b=DATE), obj(["a"], a=STR, b=DATE), {"type": "array"}]},
    {
        "oneOf": [{"$ref": "#/$defs/i"}, {"$ref": "#/$defs/s"}],
        "$defs": {"i": obj(["a"], a=INT, b=STR), "s": obj(["a"], a=STR, b=INT)},
    },
    {"allOf": [obj(a=INT, b=INT), obj(a={"minimum": 2}, b={"minimum": 2})]},
    {"type": "array", "prefixItems": [INT, STR], "items": False},
    {"type": "array", "prefixItems": [INT, STR], "minItems": 1, "items": {"type": "null"}},
    {"$ref": "#/$defs/a", "$defs": {"a": INT}, "minimum": 4},
    {
        "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}},
        "$ref": "#/$defs/t",
    },
    {
        "type": "object",
        "properties": {"n": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "additionalProperties": False,
    },
]

VALIDATOR = jsonschema.Draft202012Validator


def is_valid(schema: Any, value: Any) -> bool:
    return bool(VALIDATOR(schema, format_checker=VALIDATOR.FORMAT_CHECKER).is_valid(value))


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:60])
def test_what_the_masks_allow_is_valid(schema: Any) -> None:
    grammar = compiled("json_schema", json.dumps(schema))
    rng = random.Random(7)
    ended = 0
    for _ in range(12):
        text = walk(grammar, rng, limit=150)
        if text is not None:
            ended += 1
            assert is_valid(schema, json.loads(text.decode())), text
    assert ended >= 2


VALUES: list[Any] = [
    None,
    True,
    0,
    3,
    4,
    6,
    9,
    12,
    17,
    -5,
    -6,
    0.5,
    1.25,
    2.5,
    1e-3,
    "",
    "a",
    "ab",
    "abc",
    "bbcc",
    "abbc",
    "é漢",
    "🎈🎈",
    "🎈🎈🎈🎈",
    "2024-02-29",
    "2023-02-29",
    "2023-02-28T10:00:00Z",
    "1.2.3.4",
    "256.1.1.1",
    "a@b.co",
    {},
    {"a": 1},
    {"a": "x"},
    {"b": 1},
    {"a": 1, "b": "x"},
    {"a": 3, "b": "x"},
    {"k": 1},
    {"k": 2},
    {"x": 1, "y": 2},
    {"x": 1},
    {"a": 1, "b": {"c": "é"}},
    {"q": "s"},
    {"q": 1, "r": 2, "s": 3},
    {"n": {"n": None}},
    [],
    [1],
    [1, 2, 3],
    [1, 2, 3, 4],
    [1, "a"],
    [1, "a", None],
    [1, "a", 2],
    ["a"],
    [[], []],
    [[], [], []],
    {"a": [1, 2.5, "é"]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:60])
def test_instances_are_judged_as_by_jsonschema(schema: Any) -> None:
    """Exact both ways. (1.0 is never written for an integer, and the order of keys is fixed.)"""
    grammar = compiled("json_schema", json.dumps(schema))
    wrong = [
        v
        for v in VALUES
        if accepts(grammar, json.dumps(v, ensure_ascii=False)) != is_valid(schema, v)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("schema", "where", "word"),
    [
        ({"type": "array", "uniqueItems": True}, "/uniqueItems", "uniqueItems"),
        (
            obj(a={"items": {"type": "string"}, "uniqueItems": True}),
            "/properties/a/uniqueItems",
            "unique",
        ),
        ({"allOf": [{"uniqueItems": True}]}, "/allOf/0/uniqueItems", "uniqueItems"),
        (
            {"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"pattern": "(a"}}},
            "/$defs/x~1y/pattern",
            "regex",
        ),
        ({"$ref": "https://example.com/s"}, "/$ref", "example.com"),
        ({"$ref": "#/$defs/none"}, "/$ref", "none"),
        ({"type": "string", "format": "regex"}, "/format", "regex"),
        ({"type": "strin"}, "/type", "strin"),
        ({"divisibleBy": 2}, "/divisibleBy", "divisibleBy"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "/x-guidance", "x-guidance"),
        ({"type": "string", "pattern": "a(?=b)"}, "/pattern", "look-around"),
        ({"patternProperties": {"(a)\\1": {}}}, "/patternProperties/(a)\\1", "back-reference"),
        ({"type": "object", "minProperties": 2}, "/minProperties", "minProperties"),
        (
            {
                "type": "object",
                "patternProperties": {"^[ab]$": INT},
                "additionalProperties": False,
                "minProperties": 2,
            },
            "/minProperties",
            "minProperties",
        ),
        ({"properties": {"a": 5}}, "/properties/a", "schema must be"),
        ([], "/", "schema must be"),
        ({"$ref": "#"}, "/$ref", "circle"),
        ({"not": {"$ref": "#"}}, "/not", "circle"),
        ({"$schema": 5}, "/$schema", "must be a string"),
        ({"$id": ["x"], "type": "null"}, "/$id", "must be a string"),
        ({"$defs": {"a": {"$anchor": 1}}, "$ref": "#/$defs/a"}, "/$defs/a/$anchor", "string"),
        ({"properties": {"a": {"$schema": None}}}, "/properties/a/$schema", "must be a string"),
    ],
)
def test_refusals_point_at_the_keyword(schema: Any, where: str | None, word: str) -> None:
    with pytest.raises(GrammarError, match=word) as caught:
        compiled("json_schema", json.dumps(schema))
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"type": "null", "type": "string"}', "twice"),
        ('{"minimum": NaN}', "NaN"),
        ('{"minimum": 1e999}', "out of range"),
        ('{"const": "\\ud800"}', "surrogate"),
        ('{"a":', "not JSON"),
        ("[" * 5000 + "]" * 5000, "deeper"),
        ('{"not":' * 70 + "{}" + "}" * 70, "deeper"),
        ('{"minimum": ' + "9" * 5000 + "}", "digits"),
        ('{"title": "' + "x" * 300_000 + '"}', "bytes"),
    ],
)
def test_hostile_json_text_is_refused(text: str, word: str) -> None:
    with pytest.raises(GrammarError, match=word):
        compiled("json_schema", text)


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 400])
def test_a_number_that_is_not_read_is_pointed_at(number: str) -> None:
    text = f'{{"anyOf": [{{"minimum": 1}}, {{"minimum": {number}}}]}}'
    with pytest.raises(GrammarError) as caught:
        compiled("json_schema", text)
    assert caught.value.where == "/anyOf/1/minimum"


def test_annotations_and_unknown_names_are_let_pass() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "t",
        "type": "integer",
        "format": "int32",
        "default": 3,
        "x-order": 1,
        "myOwn": {"not": {}},
        "uniqueItems": False,
        "$defs": {"unused": {"not": {}}},
    }
    assert accepts(compiled("json_schema", schema), "5")


def test_a_recursion_that_never_ends_is_cut_off() -> None:
    endless = {**obj(["a"], a={"$ref": "#"}), "additionalProperties": False}
    with pytest.raises(UnsatisfiableGrammar, match="no value"):
        compiled("json_schema", endless)
    behind = {
        "anyOf": [INT, {"$ref": "#/$defs/e"}],
        "$defs": {"e": {**endless, "properties": {"a": {"$ref": "#/$defs/e"}}}},
        "not": {"const": 0},
    }
    assert accepts(compiled("json_schema", behind), "5")
    assert not accepts(compiled("json_schema", behind), '{"a"')


FORMATS = {
    "date": (
        ["2024-02-29", "2000-02-29", "1999-12-31"],
        ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31", "2024-13-01", "24-01-01"],
    ),
    "time": (["23:59:59Z", "00:00:00.123+05:30"], ["24:00:00Z", "23:59:60Z", "12:00:00", "12:00Z"]),
    "date-time": (
        ["2024-02-29T10:00:00Z", "2023-01-01t00:00:00.5-08:00"],
        ["2023-02-29T10:00:00Z", "2024-01-01 10:00:00Z", "2024-01-01"],
    ),
    "hostname": (
        ["a", "example.com", "a-b.c-d", "a--b", "x" * 63],
        ["", "-a", "a-", "a..b", "ab--c", "xn--x", "x" * 64, ".".join(["x" * 62] * 5)],
    ),
    "ipv4": (["0.0.0.0", "255.1.2.3"], ["256.0.0.0", "1.2.3", "01.2.3.4"]),
    "uuid": (["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08", ""]),
    "uri": (["https://example.com/a?b#c"], ["//example.com", "a b"]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name: str) -> None:
    matching, others = FORMATS[name]
    grammar = compiled("json_schema", {"type": "string", "format": name})
    assert [t for t in matching if not accepts(grammar, json.dumps(t))] == []
    assert [t for t in others if accepts(grammar, json.dumps(t))] == []
    if name in ("date", "time", "date-time"):
        parse = {
            "date": date.fromisoformat,
            "time": dt_time.fromisoformat,
            "date-time": datetime.fromisoformat,
        }[name]
        rng = random.Random(1)
        for _ in range(25):
            text = walk(grammar, rng)
            assert text is not None
            parse(json.loads(text).upper())


def test_format_keeps_its_siblings() -> None:
    grammar = compiled(
        "json_schema",
        {"type": "string", "format": "date", "pattern": "^20", "allOf": [{"pattern": "9$"}]},
    )
    assert accepts(grammar, '"2024-02-29"')
    assert not accepts(grammar, '"1999-12-29"')
    assert not accepts(grammar, '"2024-02-28"')
