"""Which keywords assert something, and the shape their values must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stolon.constrained.json_text import pointer
from stolon.constrained.schema.terms import Path
from stolon.errors import GrammarError

__all__ = ["MAX_COUNT", "MAX_ENUM", "TYPES", "check_keywords", "count", "refusal"]

TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
MAX_ENUM = 4096
MAX_COUNT = 100_000


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
        check = _CHECKS.get(keyword)
        if check is not None:
            check(keyword, value, path)


def _foreign(keyword: str, value: Any, path: Path) -> None:
    raise refusal(
        f"the schema keyword {keyword!r} is not supported",
        (*path, keyword),
        "remove it, and check the finished value instead",
    )


def _schema(keyword: str, value: Any, path: Path) -> None:
    if not isinstance(value, (dict, bool)):
        raise refusal("a schema must be a JSON object or a boolean", (*path, keyword))


def _list(keyword: str, value: Any, path: Path) -> None:
    if not isinstance(value, list) or not value:
        raise refusal(f"{keyword!r} must be a non-empty array of schemas", (*path, keyword))


def _map(keyword: str, value: Any, path: Path) -> None:
    if not isinstance(value, dict):
        raise refusal(f"{keyword!r} must be an object", (*path, keyword))


def _number(keyword: str, value: Any, path: Path) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refusal(f"{keyword!r} must be a number", (*path, keyword))
    if keyword == "multipleOf" and value <= 0:
        raise refusal("'multipleOf' must be above 0", (*path, keyword))


def _count(keyword: str, value: Any, path: Path) -> None:
    # Far beyond what any text reaches, an upper bound says nothing.
    if not keyword.startswith("max") or not isinstance(value, int) or value <= MAX_COUNT:
        count(value, (*path, keyword))


def _type(keyword: str, value: Any, path: Path) -> None:
    if isinstance(value, str) and value in TYPES:
        return
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(n, str) and n in TYPES for n in names):
        raise refusal(f"'type' must name JSON types, not {value!r}"[:200], (*path, keyword))


def _enum(keyword: str, value: Any, path: Path) -> None:
    if not isinstance(value, list):
        raise refusal("'enum' must be an array of values", (*path, keyword))
    if len(value) > MAX_ENUM:
        raise refusal(
            f"'enum' has {len(value):,} values; the limit is {MAX_ENUM:,}", (*path, keyword)
        )


def _string(keyword: str, value: Any, path: Path) -> None:
    if not isinstance(value, str):
        raise refusal(f"{keyword!r} must be a string", (*path, keyword))


def _strings(keyword: str, value: Any, path: Path) -> None:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise refusal("'required' must be an array of strings", (*path, keyword))


def _boolean(keyword: str, value: Any, path: Path) -> None:
    if not isinstance(value, bool):
        raise refusal(f"{keyword!r} must be a boolean", (*path, keyword))


def _dependent(keyword: str, value: Any, path: Path) -> None:
    ok = isinstance(value, dict) and all(
        isinstance(names, list) and all(isinstance(n, str) for n in names)
        for names in value.values()
    )
    if not ok:
        raise refusal("'dependentRequired' must map names to arrays of names", (*path, keyword))


_CHECKS: dict[str, Callable[[str, Any, Path], None]] = {
    **dict.fromkeys(
        (
            *(
                "extends",
                "disallow",
                "divisibleBy",
                "x-guidance",
            ),  # of draft 3, and llguidance's own
            *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
        ),
        _foreign,
    ),
    **dict.fromkeys(
        (
            *("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties"),
            *("items", "unevaluatedItems", "unevaluatedProperties"),
        ),
        _schema,
    ),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _list),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas", "$defs"), _map),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _number
    ),
    **{
        f"{end}{what}": _count
        for end in ("min", "max")
        for what in ("Length", "Items", "Properties", "Contains")
    },
    **dict.fromkeys(("pattern", "format", "$ref", "$schema", "$id"), _string),
    "type": _type,
    "enum": _enum,
    "required": _strings,
    "uniqueItems": _boolean,
    "dependentRequired": _dependent,
}
