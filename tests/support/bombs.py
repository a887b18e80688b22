"""Inputs made to hurt: patterns, schemas and grammars, by name. Each is a kind and a text or a value."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["BOMBS", "Bomb"]

Bomb = tuple[str, Any]
BOMBS: dict[str, Callable[[], Bomb]] = {}


def _add(kind: str, **named: Any) -> None:
    for name, text in named.items():
        BOMBS[f"{kind} {name}"] = lambda text=text: (kind, text() if callable(text) else text)


def _deep(depth: int, around: Callable[[Any], Any], core: Any) -> Any:
    for _ in range(depth):
        core = around(core)
    return core


def _two_ways(keyword: str, depth: int) -> Any:
    def around(inner: Any) -> Any:
        return {keyword: [{"properties": {"a": inner}}, {"properties": {"b": inner}}]}

    return _deep(depth, around, {"type": "integer"})


def _chain(keyword: str, length: int) -> Any:
    """Each definition refers twice to the next one: 2^length paths."""
    definitions: dict[str, Any] = {
        f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(length)
    }
    definitions[f"d{length}"] = {"type": "object", "minProperties": 1}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _doubled(length: int) -> Any:
    """Each level holds the next one twice, both required: the only text has 2^length leaves."""
    definitions: dict[str, Any] = {
        f"d{i}": {
            "type": "object",
            "properties": {
                "a": {"$ref": f"#/$defs/d{i + 1}"},
                "b": {"$ref": f"#/$defs/d{i + 1}"},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        for i in range(length)
    }
    definitions[f"d{length}"] = {"const": 0}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _if_chain(length: int) -> Any:
    schema: Any = {"type": "integer"}
    for i in range(length):
        schema = {"if": {"const": i}, "then": {"type": "integer"}, "else": schema}
    return schema


_add(
    "regex",
    counted_twice="(a{1,200}){1,200}",
    exponential_automaton="[ab]*a[ab]{18}",
    exponential_automaton_long="[ab]*a[ab]{400}",
    two_exponential="([ab]*a[ab]{12}c){1,50}",
    unicode_counted=r"\w{1,500}",
    any_counted=".{0,100000}",
    any_counted_min=".{100000}",
    unicode_words=r"(\p{L}{1,1000} ){1,1000}",
    counted_classes="([a-f]{0,300}[b-g]{0,300}){0,300}",
    long_run="(a{100000}){10000}",
    huge_count="a{99999999999999999999}",
    reversed_count="a{5,2}",
    stars="((a*)*)*b",
    star_tower=lambda: "(" * 200 + "a" + ")*" * 200,
    plus_of_plus="(x+x+)+y",
    same_twice="(a|a)*(a|a|a)*b",
    optional_run="(a?){500}a{500}",
    dots="(.*a){25}",
    dots_long=lambda: ".*" * 30_000,
    nested_groups=lambda: "(" * 5_000 + "a" + ")" * 5_000,
    unclosed=lambda: "(" * 60_000,
    brackets=lambda: "[" * 60_000,
    nested_sets=lambda: r"[\w&&" * 500 + "a" + "]" * 500,
    backslashes=lambda: "\\" * 30_001,
    classes=r"(\p{L}|\p{N}|\w|.){1,3000}x",
    every_class=lambda: r"(\p{L}\P{Lu}\W\S\D[^\p{Greek}])" * 300,
    alternatives=lambda: "|".join(f"word{i * 7919}" for i in range(5_000)),
    nested_alternatives=lambda: "(a|b" * 3_000 + ")" * 3_000,
    prefixes=lambda: "|".join("a" * i for i in range(1, 300)),
    case_folded=lambda: "(?i)" + "".join(map(chr, range(0x400, 0x2000))),
    long_literal=lambda: "ab" * 32_000,
    too_long=lambda: "a" * 1_000_000,
    nothing=r"[^\s\S]",
    empty="",
    empty_loop="(|a|)*()*(^)*",
    anchors=lambda: "(^|$)" * 3_000,
    lone_surrogate="a\ud800",
    surrogate_escape=r"\ud800",
    nul="\x00{1,9}",
)
_add(
    "json_schema",
    max_items={"type": "array", "items": {}, "maxItems": 100_000},
    min_items={"type": "array", "items": {}, "minItems": 100_000},
    items_in_items=lambda: _deep(
        12, lambda s: {"type": "array", "items": s, "minItems": 9, "maxItems": 99}, {"const": 1}
    ),
    min_length={"type": "string", "minLength": 99_999},
    max_length={"type": "string", "maxLength": 100_000, "pattern": "a.*b.*c"},
    huge_count={"type": "string", "minLength": 10**30},
    any_of_nest=lambda: _two_ways("anyOf", 10),
    any_of_deep_nest=lambda: _two_ways("anyOf", 14),
    one_of_nest=lambda: _two_ways("oneOf", 9),
    all_of_nest=lambda: _two_ways("allOf", 10),
    all_of_any={
        "allOf": [{"anyOf": [{"minimum": i}, {"multipleOf": i + 2}]} for i in range(20)],
    },
    one_of_many={
        "oneOf": [
            {"properties": {f"p{i}": {"const": i}, "k": {"type": "string"}}, "required": [f"p{i}"]}
            for i in range(200)
        ],
    },
    not_tower=lambda: _deep(60, lambda s: {"not": s}, {"type": "integer"}),
    if_tower=lambda: _if_chain(20),
    if_many={
        "allOf": [
            {"if": {"properties": {"k": {"const": i}}}, "then": {"required": [f"p{i}"]}}
            for i in range(100)
        ],
    },
    many_values=lambda: {"enum": list(range(100_000))},
    values=lambda: {"enum": [f"value {i * 7919}" for i in range(4_096)]},
    long_values=lambda: {"enum": [f"{i:05}" * 10 for i in range(4_000)]},
    value_trees=lambda: {"enum": [{f"k{i}": [i, {"x": i}]} for i in range(2_000)]},
    self={"$ref": "#"},
    loop={
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    all_of_self={"allOf": [{"$ref": "#"}, {"type": "object"}]},
    any_of_self={"anyOf": [{"$ref": "#"}, {"type": "object"}]},
    not_self={"not": {"$ref": "#"}},
    forced_for_ever={"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    forced_arrays={"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    refs_in_any_of=lambda: _chain("anyOf", 40),
    refs_in_all_of=lambda: _chain("allOf", 40),
    refs_in_one_of=lambda: _chain("oneOf", 40),
    doubled=lambda: _doubled(40),
    long_ref_chain=lambda: {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2_000)}
        | {"d2000": {"type": "null"}},
    },
    dynamic_ref={"$dynamicAnchor": "x", "properties": {"a": {"$dynamicRef": "#x"}}},
    remote={"$ref": "https://example.invalid/schema.json"},
    many_properties=lambda: {
        "properties": {f"p{i}": {"type": "integer"} for i in range(3_000)},
        "additionalProperties": False,
    },
    more_properties=lambda: {"properties": {f"p{i}": {} for i in range(20_000)}},
    required_names={"type": "object", "required": [f"r{i}" for i in range(5_000)]},
    long_names={"properties": {"x" * 50_000 + str(i): {} for i in range(4)}},
    odd_names={"properties": {chr(i): {"type": "null"} for i in range(1, 0x600)}},
    min_properties={"type": "object", "minProperties": 100_000},
    counted_optional={
        "properties": {f"p{i}": {} for i in range(200)},
        "minProperties": 100,
        "maxProperties": 101,
    },
    patterns={"patternProperties": {f"^a.*{i}.*z{{1,{i + 1}}}$": {} for i in range(60)}},
    pattern_bomb={"type": "string", "pattern": "(a{1,200}){1,200}"},
    pattern_look={"type": "string", "pattern": "^(?=.*a)(?=.*b)(?!.*c).{8,64}$"},
    patterns_together={
        "type": "string",
        "allOf": [{"pattern": f"[ab]*a[ab]{{{i}}}"} for i in range(12, 24)],
    },
    dependent={"dependentRequired": {f"p{i}": [f"p{i + 1}", f"p{i * 2}"] for i in range(500)}},
    unique={"type": "array", "uniqueItems": True, "items": {"enum": list(range(30))}},
    contains={"contains": {"minimum": 5}, "minContains": 1_000, "maxContains": 2_000},
    unevaluated={
        "anyOf": [{"properties": {f"p{i}": {"const": i}}} for i in range(24)],
        "unevaluatedProperties": False,
    },
    big_multiple={"type": "integer", "multipleOf": 99_999_999_999},
    two_multiples={
        "allOf": [{"type": "integer", "multipleOf": p} for p in (9973, 9967, 9949)],
    },
    tiny_multiple={"type": "number", "multipleOf": 1e-300, "minimum": 1e300},
    long_bounds={"type": "number", "minimum": 1.234567890123e-12, "maximum": 9.87654321e17},
    no_number={"type": "integer", "minimum": 5, "maximum": 3},
    no_string={"type": "string", "minLength": 5, "maxLength": 3},
    no_type={"allOf": [{"type": "string"}, {"type": "integer"}]},
    no_array={"type": "array", "items": False, "minItems": 1},
    deep=lambda: _deep(60, lambda s: {"properties": {"a": s}}, {"type": "null"}),
    too_deep=lambda: _deep(300, lambda s: {"properties": {"a": s}}, {"type": "null"}),
    open_brackets=lambda: "[" * 200_000,
    open_braces=lambda: '{"items":' * 25_000,
    same_key='{"type": "string", "type": "integer"}',
    same_key_often=lambda: "{" + ",".join('"a": 1' for _ in range(30_000)) + "}",
    huge_number='{"minimum": 1e400}',
    huge_integer=lambda: '{"minimum": ' + "9" * 200_000 + "}",
    not_a_number='{"minimum": NaN}',
    lone_surrogate='{"const": "\\ud800"}',
    invalid_utf8='{"const": "\udc80"}',
    annotations=lambda: {f"x-{i}": {"y": [i]} for i in range(10_000)},
    too_long=lambda: {"description": "x" * 2_000_000},
    many_numbers=lambda: json.dumps({"x": list(range(40_000))}),
    format_often={"allOf": [{"format": f} for f in ("hostname", "date-time", "uri", "email")] * 9},
    flag_zoo={"properties": {f"p{i}": {"type": "string", "format": "uri"} for i in range(150)}},
)
_add(
    "choice",
    many=lambda: [f"choice {i * 7919} é" for i in range(4_096)],
    too_many=lambda: [str(i) for i in range(100_000)],
    prefixes=lambda: ["a" * i for i in range(1, 600)],
    long_ones=lambda: [f"{i}" + "x" * 2_500 for i in range(100)],
    twice=["a", "b", "a"],
    none=[],
    lone_surrogate=["\ud800"],
)
_add(
    "ebnf",
    nest=lambda: "root ::= " + "(" * 2_000 + '"a"' + ")" * 2_000,
    stars='root ::= (((("a"*)*)*)* "b"?)*',
    left="root ::= root root | root | [a] | ",
    indirect_left='root ::= x\nx ::= y "a" | ""\ny ::= x | x x',
    empty_loop='root ::= root | ""',
    no_way_out='root ::= "a" root',
    only_itself="root ::= root",
    unknown_rule="root ::= nowhere",
    no_root='other ::= "a"',
    forced='root ::= [a]+ "ab"',
    counted='root ::= ("a" | "b" "c"){1,100000}',
    counted_twice='root ::= (("a" "b"?){1,300}){1,300}',
    many_rules=lambda: (
        "root ::= r0\n"
        + "\n".join(f'r{i} ::= "x" r{i + 1}?' for i in range(2_000))
        + '\nr2000 ::= "y"'
    ),
    wide=lambda: "root ::= " + " | ".join(f'"{i}"' for i in range(5_000)),
    noise=lambda: "::= | (" * 8_000,
    quotes=lambda: 'root ::= "' + 'a\\"' * 20_000,
)
_add(
    "lark",
    left='start: start start | "a" |',
    ambiguous='start: start start start | "a" | "aa" | ""',
    forced='start: /a+/ "ab"',
    forced_any='start: /.*/ "x" /.*/ "y"',
    no_way_out='start: "ab" start',
    no_way_out_two='start: "a" b\nb: "c" start',
    terminal_loop='start: A\nA: B "x"\nB: A "y"',
    rules=lambda: (
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(500)) + '\nr500: "a"'
    ),
    empty_rules=lambda: (
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(30)) + "\nr30: "
    ),
    counted='start: ("a" | "b" "c"){1,100000}',
    terminal_counted="start: /(a{1,1000}b{1,1000}){1,1000}/",
    terminal_algebra="start: T\nT: /(.*a){20}/ & ~/(.*b){20}/ & /[ab]*a[ab]{40}/",
    ignored='start: "a"*\n%ignore /( *)*/',
    many_terminals=lambda: (
        "start: "
        + " | ".join(f"T{i}" for i in range(1_500))
        + "\n"
        + "\n".join(f"T{i}: /[a-z]{{1,{i % 50 + 1}}}{i}/" for i in range(1_500))
    ),
    schema_inside='start: %json {"type": "array", "minItems": 100000}',
    deep=lambda: "start: " + "(" * 10_000 + '"a"' + ")" * 10_000,
    brackets='start: "[" start "]" | "[" start start "]" | "a"',
    noise=lambda: "start: %% ~ & | /" * 3_000,
    string_escape='start: "\\ud800"',
)
