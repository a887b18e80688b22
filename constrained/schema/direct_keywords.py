"""The keywords of one schema: whether llguidance enforces them as they are, and how to put them to it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from stolon.constrained.regex_parser import parse_ecma_search
from stolon.constrained.regex_print import to_rust
from stolon.constrained.schema.formats import ENFORCED_FORMATS, STANDARD_FORMATS, format_rust
from stolon.constrained.schema.keywords import MAX_COUNT
from stolon.constrained.schema.other_names import pattern_of_others
from stolon.errors import GrammarError

__all__ = ["is_direct", "settle"]

# With a value that says nothing, a keyword of these is left out; with any other it needs rewriting.
_REWRITTEN = frozenset(
    (
        *("not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains"),
        *("propertyNames", "dependentRequired", "dependentSchemas"),
        *("unevaluatedItems", "unevaluatedProperties"),
    )
)
_COUNTS = tuple(
    f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties")
)
_CHANGING = _REWRITTEN | {"properties", "pattern", "patternProperties", "format", *_COUNTS}
_ANY_NAME = r"^(?s:.*)$"
"""As a search for nothing it would match the same, but llguidance would not see a repetition in it, and
walk the whole vocabulary at each token of a name."""
_PLAIN = frozenset("^$[]()|{},0123456789-_:;=!@%&~\"'<>`#/ ")


def is_direct(schema: dict[str, Any]) -> bool:
    """Whether llguidance enforces every keyword, once it is settled."""
    if not _REWRITTEN.isdisjoint(schema) and not all(
        _says_nothing(keyword, schema) for keyword in _REWRITTEN & schema.keys()
    ):
        return False
    unnamed = _is_open(schema) or bool(schema.get("patternProperties"))
    if schema.get("minProperties", 0) > 1 and unnamed:
        return False  # a name that comes twice would be counted twice
    name = schema.get("format")
    if name in STANDARD_FORMATS and name not in ENFORCED_FORMATS and _allows_strings(schema):
        return False
    if schema.get("patternProperties") and _is_open(schema):
        return False
    return "enum" not in schema or bool(schema["enum"])


def _is_open(schema: dict[str, Any]) -> bool:
    """Whether names that it does not mention may come."""
    return schema.get("additionalProperties") is not False


def _says_nothing(keyword: str, schema: dict[str, Any]) -> bool:
    value = schema[keyword]
    match keyword:
        case "if":
            return "then" not in schema and "else" not in schema
        case "then" | "else":
            return "if" not in schema
        case "minContains" | "maxContains":
            return "contains" not in schema
        case "uniqueItems":
            return value is False or int(schema.get("maxItems", 2)) < 2
        case "not":
            return value is False
        case "contains":
            return False
        case "dependentRequired" | "dependentSchemas":
            return bool(value == {})
        case _:
            return value is True or bool(value == {})


def settle(schema: dict[str, Any]) -> None:
    """Leave out what says nothing; put exact patterns in place of patterns and formats.

    Raises:
        GrammarError: what is said in a pattern or by names can't be put so.
    """
    if _CHANGING.isdisjoint(schema):
        return
    for keyword in _REWRITTEN & schema.keys():
        del schema[keyword]
    for keyword in ("maxLength", "maxItems", "maxProperties"):
        if schema.get(keyword, 0) > MAX_COUNT:
            del schema[keyword]
    for keyword in _COUNTS:
        if keyword in schema:
            schema[keyword] = int(schema[keyword])
    if schema.get("properties") and _is_open(schema):
        # llguidance takes an escaped spelling of a named property for another name; among the names of
        # a pattern it allows no such spellings.
        rest = schema.get("additionalProperties", True)
        free = rest is True or rest == {}
        others = _ANY_NAME if free else pattern_of_others(schema["properties"])
        if others is None:
            raise GrammarError("too many names")
        schema["patternProperties"] = {others: rest}
        schema["additionalProperties"] = False
    elif patterns := schema.get("patternProperties"):
        schema["patternProperties"] = {_rust(p): s for p, s in patterns.items()}
    if "pattern" in schema:
        schema["pattern"] = _rust(schema["pattern"])
    name = schema.pop("format", None)
    if name in ENFORCED_FORMATS and _allows_strings(schema):
        exact = format_rust(name)
        if "pattern" in schema:
            schema["allOf"] = [*schema.get("allOf", ()), exact]
        else:
            bounds = [one["maxLength"] for one in (schema, exact) if "maxLength" in one]
            schema |= exact | ({"maxLength": min(bounds)} if bounds else {})


def _allows_strings(schema: dict[str, Any]) -> bool:
    types = schema.get("type", "string")
    return types == "string" or "string" in types


@lru_cache(maxsize=4096)
def _rust(pattern: str) -> str:
    """The same search in the syntax of Rust's regex crate. Raises GrammarError."""
    tree = parse_ecma_search(pattern)
    if all(c.isalnum() or c in _PLAIN for c in pattern) and pattern.isascii():
        return pattern  # read alike by both
    return f"^(?:{to_rust(tree)})$"
