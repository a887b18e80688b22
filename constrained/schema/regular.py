"""Closed schemas without recursion as regex trees, which an automaton follows at no cost a token.

What is translated: objects whose members are all named, arrays of one kind of item, strings, whole
numbers, enumerations, alternatives. Anything else is left to the other translations.
"""

from __future__ import annotations

import json
import math
from typing import Any

from stolon.constrained.regex_ast import ANY, EMPTY, Chars, Choice, Node, Repeat, Sequence, literal
from stolon.constrained.regex_build import difference, intersect
from stolon.constrained.regex_parser import parse_ecma_search, parse_regex
from stolon.constrained.schema.formats import (
    ENFORCED_FORMATS,
    STANDARD_FORMATS,
    format_pattern,
    format_tree,
)
from stolon.constrained.schema.grammar import SEPARATORS
from stolon.constrained.schema.integers import integers
from stolon.constrained.schema.keywords import check_keywords
from stolon.constrained.schema.pointers import look_up, resolve
from stolon.constrained.schema.terms import Path
from stolon.errors import GrammarError

__all__ = ["schema_tree"]

MAX_SCHEMAS = 256
MAX_LEADING = 8
"""Optional members before the first required one: each may be the first, so each doubles what follows."""
MAX_ITEMS = 64
MAX_LITERALS = 32_768
"""Characters of values and names; each becomes a node of the tree."""

_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "example", "$comment", "deprecated"),
        *("readOnly", "writeOnly", "$defs", "definitions", "$schema", "$id"),
    )
)
_BY_TYPE: dict[str, frozenset[str]] = {
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset(("items", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties")),
}
_TYPES: dict[type, str] = {str: "string", int: "integer", bool: "boolean", type(None): "null"}
_NUMBER = parse_regex(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_ESCAPED = ((0, 31), (34, 34), (92, 92))


class _Unsuited(Exception):
    """The schema has something that is not translated."""


def schema_tree(document: Any, whitespace: str) -> Node | None:
    """The texts of a schema's values; None where it is not of the kind that is translated.

    Args:
        document: a self-contained schema; local references are followed.
    """
    try:
        return _Builder(document, *SEPARATORS[whitespace]).value(document, ())
    except (_Unsuited, GrammarError):
        return None  # what is wrong with it is said by who translates it instead


class _Builder:
    def __init__(self, document: Any, comma: str, colon: str) -> None:
        self._document = document
        self._comma = literal(comma)
        self._colon = colon
        self._open: set[Path] = set()
        self._count = 0
        self._literals = 0

    def value(self, schema: Any, path: Path) -> Node:
        self._count += 1
        if not isinstance(schema, dict) or path in self._open or self._count > MAX_SCHEMAS:
            raise _Unsuited
        check_keywords(schema, path)
        asserted = schema.keys() - _ANNOTATIONS
        self._open.add(path)
        try:
            return self._value(schema, asserted, path)
        finally:
            self._open.discard(path)

    def _value(self, schema: dict[str, Any], asserted: set[str], path: Path) -> Node:
        if asserted == {"$ref"}:
            target = resolve(self._document, schema["$ref"], (*path, "$ref"))
            return self.value(look_up(self._document, target), target)
        for keyword in ("anyOf", "allOf"):
            if asserted == {keyword} and (keyword == "anyOf" or len(schema[keyword]) == 1):
                return Choice(
                    tuple(
                        self.value(one, (*path, keyword, i))
                        for i, one in enumerate(schema[keyword])
                    )
                )
        types = schema.get("type")
        names: list[str] = types if isinstance(types, list) else [types] if types else []
        if asserted <= {"type", "const"} and "const" in asserted:
            return self._words([schema["const"]], types)
        if asserted <= {"type", "enum"} and "enum" in asserted:
            return self._words(schema["enum"], types)
        if not names or not asserted - {"type"} <= frozenset().union(
            *(_BY_TYPE[name] for name in names)
        ):
            raise _Unsuited
        return Choice(tuple(self._typed(name, schema, path) for name in dict.fromkeys(names)))

    def _typed(self, name: str, schema: dict[str, Any], path: Path) -> Node:
        match name:
            case "null":
                return literal("null")
            case "boolean":
                return Choice((literal("true"), literal("false")))
            case "string":
                return self._string(schema)
            case "integer":
                return self._integer(schema)
            case "number" if "integer" not in schema["type"]:
                return _NUMBER
            case "array":
                return self._array(schema, path)
            case "object":
                return self._object(schema, path)
        raise _Unsuited

    def _literal(self, text: str) -> Node:
        self._literals += len(text)
        if self._literals > MAX_LITERALS:
            raise _Unsuited
        return literal(text)

    def _words(self, values: list[Any], types: Any) -> Node:
        allowed = types if isinstance(types, list) else [types]
        words = []
        for value in values:
            name = _TYPES.get(type(value))
            if name is None:
                raise _Unsuited
            if types is None or name in allowed or (name == "integer" and "number" in allowed):
                words.append(json.dumps(value, ensure_ascii=False))
        return Choice(tuple(map(self._literal, dict.fromkeys(words))))

    @staticmethod
    def _string(schema: dict[str, Any]) -> Node:
        low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
        name = schema.get("format")
        asserted = name in STANDARD_FORMATS
        if not asserted and "pattern" not in schema:
            if high is not None and high < low:
                return Choice(())
            return _quoted(Repeat(_ANY_SPELLED, low, None if high is None else int(high)))
        if low or high is not None or (asserted and "pattern" in schema):
            raise _Unsuited  # an intersection
        if not asserted:
            return _quoted(_spelled(parse_ecma_search(schema["pattern"])))
        if name not in ENFORCED_FORMATS or format_pattern(name)[1] is not None:
            raise _Unsuited
        return _quoted(_spelled(format_tree(name)))

    @staticmethod
    def _integer(schema: dict[str, Any]) -> Node:
        lows = [math.ceil(schema["minimum"])] if "minimum" in schema else []
        highs = [math.floor(schema["maximum"])] if "maximum" in schema else []
        if "exclusiveMinimum" in schema:
            lows.append(math.floor(schema["exclusiveMinimum"]) + 1)
        if "exclusiveMaximum" in schema:
            highs.append(math.ceil(schema["exclusiveMaximum"]) - 1)
        return integers(max(lows, default=None), min(highs, default=None))

    def _array(self, schema: dict[str, Any], path: Path) -> Node:
        low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
        high = None if high is None else int(high)
        if "items" not in schema or low > MAX_ITEMS or (high is not None and high > MAX_ITEMS):
            raise _Unsuited
        item = self.value(schema["items"], (*path, "items"))
        if high is not None and high < max(low, 1):
            return literal("[]") if low == 0 else Choice(())
        more = Sequence((self._comma, item))
        items: Node = Sequence(
            (item, Repeat(more, max(low - 1, 0), None if high is None else high - 1))
        )
        if low == 0:
            items = Choice((EMPTY, items))
        return Sequence((literal("["), items, literal("]")))

    def _object(self, schema: dict[str, Any], path: Path) -> Node:
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        if schema.get("additionalProperties") is not False or not required <= properties.keys():
            raise _Unsuited
        leading = next(
            (i for i, name in enumerate(properties) if name in required), len(properties)
        )
        if leading > MAX_LEADING:
            raise _Unsuited
        # What may follow from each member on: after another member, and as the first.
        following: Node = EMPTY
        first: Node = EMPTY
        for name, member in reversed(properties.items()):
            key = self._literal(json.dumps(name, ensure_ascii=False) + self._colon)
            pair = Sequence((key, self.value(member, (*path, "properties", name))))
            after: Node = Sequence((self._comma, pair))
            begun = Sequence((pair, following))
            if name in required:
                first = begun
            else:
                first = Choice((begun, first))
                after = Choice((after, EMPTY))
            following = Sequence((after, following))
        return Sequence((literal("{"), first, literal("}")))


def _quoted(inner: Node) -> Node:
    return Sequence((literal('"'), inner, literal('"')))


def _spelled(node: Node) -> Node:
    """The tree of a string's characters as ``json.dumps(text, ensure_ascii=False)`` spells them."""
    match node:
        case Chars(ranges):
            return _spelled_chars(ranges)
        case Sequence(parts):
            return Sequence(tuple(map(_spelled, parts)))
        case Choice(options):
            return Choice(tuple(map(_spelled, options)))
        case Repeat(inner, low, high):
            return Repeat(_spelled(inner), low, high)


def _spelled_chars(ranges: tuple[tuple[int, int], ...]) -> Node:
    raw = difference(ranges, _ESCAPED)
    options: list[Node] = [Chars(raw)] if raw else []
    codes = [c for low, high in intersect(ranges, _ESCAPED) for c in range(low, high + 1)]
    options += [literal("\\" + (_SHORT.get(code) or f"u{code:04x}")) for code in codes]
    return options[0] if len(options) == 1 else Choice(tuple(options))


_ANY_SPELLED = _spelled(ANY)
