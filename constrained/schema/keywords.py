"""Which keywords assert something, and the shape their values must have."""

from __future__ import annotations

from typing import Any

from stolon.constrained.json_text import pointer
from stolon.constrained.schema.terms import Path
from stolon.errors import GrammarError

__all__ = ["MAX_COUNT", "MAX_ENUM", "TYPES", "check_keywords", "count", "refusal"]

TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
MAX_ENUM = 4096
MAX_COUNT = 100_000

_SCHEMAS = frozenset(
    ("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties")
) | {"items", "unevaluatedItems", "unevaluatedProperties"}
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_MAPS = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs"))
_COUNTS = frozenset(
    f"{end}{what}"
    for end in ("min", "max")
    for what in ("Length", "Items", "Properties", "Contains")
)
_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_FOREIGN = frozenset(("extends", "disallow", "divisibleBy", "x-guidance"))
_DYNAMIC = frozenset(("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"))


def refusal(message: str, path: Path, hint: str | None = None) -> GrammarError:
    """An error that names the place."""
    return GrammarError(message, where=pointer(path), hint=hint)


def count(value: Any, path: Path) -> int:
    """A whole number, which may be written as 3.0. Beyond 100,000 it is refused.

    Raises:
        GrammarError: for anything else.
    """
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)
    if not whole or not 0 <= value <= MAX_COUNT:
        raise refusal(f"{path[-1]!r} must be a whole number up to {MAX_COUNT:,}", path)
    return int(value)


def check_keywords(schema: dict[str, Any], path: Path) -> None:
    """Refuse assertions of other dialects, and values that no draft allows."""
    for keyword, value in schema.items():
        here = (*path, keyword)
        if keyword in _FOREIGN or keyword in _DYNAMIC:
            raise refusal(
                f"the schema keyword {keyword!r} is not supported",
                here,
                "remove it, and check the finished value instead",
            )
        if keyword in _SCHEMAS:
            if not isinstance(value, (dict, bool)):
                raise refusal("a schema must be a JSON object or a boolean", here)
        elif keyword in _LISTS:
            if not isinstance(value, list) or not value:
                raise refusal(f"{keyword!r} must be a non-empty array of schemas", here)
        elif keyword in _MAPS:
            if not isinstance(value, dict):
                raise refusal(f"{keyword!r} must be an object", here)
        elif keyword in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise refusal(f"{keyword!r} must be a number", here)
            if keyword == "multipleOf" and value <= 0:
                raise refusal("'multipleOf' must be above 0", here)
        elif keyword in _COUNTS:
            # Far beyond what any text reaches, an upper bound says nothing.
            if not keyword.startswith("max") or not isinstance(value, int) or value <= MAX_COUNT:
                count(value, here)
        else:
            _check_plain(keyword, value, here)


def _check_plain(keyword: str, value: Any, path: Path) -> None:
    if keyword == "type":
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(n, str) and n in TYPES for n in names):
            raise refusal(f"'type' must name JSON types, not {value!r}"[:200], path)
    elif keyword == "enum":
        if not isinstance(value, list):
            raise refusal("'enum' must be an array of values", path)
        if len(value) > MAX_ENUM:
            raise refusal(f"'enum' has {len(value):,} values; the limit is {MAX_ENUM:,}", path)
    elif keyword in ("pattern", "format", "$ref"):
        if not isinstance(value, str):
            raise refusal(f"{keyword!r} must be a string", path)
    elif keyword == "required":
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise refusal("'required' must be an array of strings", path)
    elif keyword == "uniqueItems":
        if not isinstance(value, bool):
            raise refusal("'uniqueItems' must be a boolean", path)
    elif keyword == "dependentRequired":
        ok = isinstance(value, dict) and all(
            isinstance(names, list) and all(isinstance(n, str) for n in names)
            for names in value.values()
        )
        if not ok:
            raise refusal("'dependentRequired' must map names to arrays of names", path)
