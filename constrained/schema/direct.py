"""Schemas that llguidance's own JSON Schema front end enforces exactly, as they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from stolon.constrained.regex_parser import parse_ecma_search
from stolon.constrained.regex_print import to_rust
from stolon.constrained.schema.drafts import KNOWN
from stolon.constrained.schema.formats import ENFORCED_FORMATS, STANDARD_FORMATS, format_rust
from stolon.constrained.schema.keywords import MAX_COUNT, check_keywords
from stolon.constrained.schema.other_names import pattern_of_others
from stolon.constrained.schema.pointers import look_up, resolve
from stolon.constrained.schema.terms import Path
from stolon.errors import GrammarError

__all__ = ["direct_schema"]

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
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties")
_SINGLE = ("items", "additionalProperties")
_DEFINITIONS = ("$defs", "definitions")
_ANY_NAME = r"^(?s:.*)$"
"""As a search for nothing it would match the same, but llguidance would not see a repetition in it, and
walk the whole vocabulary at each token of a name."""
_PLAIN = frozenset("^$[]()|{},0123456789-_:;=!@%&~\"'<>`#/ ")


def direct_schema(document: Any) -> Any | None:
    """The schema to give to llguidance, or None where it would refuse or not enforce a keyword.

    Args:
        document: a self-contained schema; left as it is.
    """
    if not isinstance(document, dict):
        return {} if document is True else None
    seen: set[Path] = set()
    todo: list[tuple[Any, Path]] = [(document, ())]
    changing: list[Path] = []
    try:
        while todo:
            schema, path = todo.pop()
            if path in seen or isinstance(schema, bool):
                continue
            seen.add(path)
            if not isinstance(schema, dict):
                return None
            check_keywords(schema, path)
            if not _is_direct(schema):
                return None
            todo.extend(_below(document, schema, path))
            if _is_open(schema) and schema.get("patternProperties"):
                return None
            if not _CHANGING.isdisjoint(schema):
                changing.append(path)
        root = _without_annotations(document, seen)
        # Deeper places first: patterns that are names in paths change.
        for path in sorted(changing, key=len, reverse=True):
            _settle(look_up(root, path))
    except GrammarError:
        return None  # said again, with its place, when the schema is rewritten
    return root


def _without_annotations(document: Any, schemas: set[Path]) -> Any:
    """A copy of a document in which the dicts at `schemas` hold no more than what says something.

    What nothing refers to is left out of their definitions. Values are shared with the document.
    """
    needed = {path[:end] for path in schemas for end in range(len(path) + 1)}
    return _copied(document, (), schemas, needed)


def _copied(value: Any, path: Path, schemas: set[Path], needed: set[Path]) -> Any:
    if path not in needed:
        return value
    if isinstance(value, list):
        return [_copied(item, (*path, i), schemas, needed) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kept = list(value.items())
    if path in schemas:
        kept = [(k, v) for k, v in kept if k in KNOWN or (*path, k) in needed]
    elif path and path[-1] in _DEFINITIONS and path[:-1] in schemas:
        kept = [(k, v) for k, v in kept if (*path, k) in needed]
    return {k: _copied(v, (*path, k), schemas, needed) for k, v in kept}


def _is_direct(schema: dict[str, Any]) -> bool:
    for keyword in _REWRITTEN & schema.keys():
        if not _says_nothing(keyword, schema):
            return False
    if schema.get("minProperties", 0) > 1 and schema.get("additionalProperties") is not False:
        return False  # a name that comes twice would be counted twice
    name = schema.get("format")
    if name in STANDARD_FORMATS and name not in ENFORCED_FORMATS and _allows_strings(schema):
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


def _settle(schema: dict[str, Any]) -> None:
    """Leave out what says nothing; put exact patterns in place of patterns and formats."""
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
        schema["allOf"] = [*schema.get("allOf", ()), format_rust(name)]


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


def _below(root: Any, schema: dict[str, Any], path: Path) -> Iterator[tuple[Any, Path]]:
    for keyword in _LISTS:
        for i, item in enumerate(schema.get(keyword, ())):
            yield item, (*path, keyword, i)
    for keyword in _MAPS:
        for name, item in schema.get(keyword, {}).items():
            yield item, (*path, keyword, name)
    for keyword in _SINGLE:
        if keyword in schema:
            yield schema[keyword], (*path, keyword)
    if "$ref" in schema:
        target = resolve(root, schema["$ref"], (*path, "$ref"))
        yield look_up(root, target), target
