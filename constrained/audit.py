"""The auditor in front of JSON Schema compilation: what is not enforced is refused, by name.

llguidance refuses most keywords that it does not implement, but passes some over in silence
(keywords of old drafts, and any name it has never heard of). The auditor walks every schema that
can be reached from the root and lets pass only

* keywords known to be enforced (`ENFORCED`), with values of the right shape;
* names that assert nothing: annotations of the drafts, and names that are in no draft, which JSON
  Schema makes annotations too. A ``format`` where no string is allowed is one of these.

Any other assertion of any draft (`REFUSED`) is refused with a JSON pointer. Definitions count only
where something refers to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from stolon.constrained.formats import FORMATS, format_schema
from stolon.constrained.json_text import parse_json, pointer
from stolon.constrained.regex import check_regex
from stolon.errors import GrammarError

__all__ = ["Audited", "audit_schema"]

Path = tuple[str | int, ...]

ENFORCED = frozenset(
    (
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties", "minItems", "maxItems"),
        *("items", "prefixItems", "additionalItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
REFUSED = frozenset(
    (
        *("not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains"),
        *("propertyNames", "dependencies", "dependentRequired", "dependentSchemas"),
        *("unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
        *("extends", "disallow", "divisibleBy", "x-guidance"),
    )
)
TYPES = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))
_COUNTS = frozenset(
    k for k in ENFORCED if k.startswith(("minLen", "maxLen", "minI", "maxI", "minP", "maxP"))
)
_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
MAX_ENUM = 4096
MAX_COUNT = 100_000


class Audited(NamedTuple):
    """A schema all of whose assertions will be enforced.

    Attributes:
        schema: what to compile: the schema given, with formats replaced by exact patterns.
        places: keyword to the JSON pointers where it is used, for messages about it.
    """

    schema: dict[str, Any]
    places: dict[str, list[str]]

    def place(self, message: str) -> str | None:
        """The pointer of the keyword that a message names, when there is only one such place."""
        named = [k for k in self.places if len(k) > 4 and k in message]
        pointers = (
            self.places[min(named, key=lambda k: (message.index(k), -len(k)))] if named else []
        )
        return pointers[0] if len(pointers) == 1 else None


def audit_schema(text: str) -> Audited:
    """Check the JSON text of a schema. ``true`` is taken as ``{}``.

    Raises:
        GrammarError: `where` is a JSON pointer to the keyword at fault.
    """
    root = parse_json(text)
    if root is True:
        root = {}
    if root is False:
        raise GrammarError("the schema false matches nothing", where="/")
    seen: set[Path] = set()
    places: dict[str, list[str]] = {}
    nodes: list[dict[str, Any]] = []
    todo: list[tuple[Any, Path]] = [(root, ())]
    while todo:
        schema, path = todo.pop()
        if path in seen or isinstance(schema, bool):
            continue
        seen.add(path)
        if not isinstance(schema, dict):
            raise _refusal("a schema must be a JSON object or a boolean", path)
        for keyword, value in schema.items():
            _check_keyword(keyword, value, (*path, keyword), schema)
            places.setdefault(keyword, []).append(pointer((*path, keyword)))
        todo.extend(_subschemas(root, schema, path))
        nodes.append(schema)
    for schema in nodes:
        _settle(schema)
    return Audited(root, places)


def _settle(schema: dict[str, Any]) -> None:
    """Put exact schemas in place of formats; drop what asserts nothing but would be refused."""
    schema.pop("uniqueItems", None)
    name = schema.pop("format", None)
    if name is not None and _allows_strings(schema):
        schema["allOf"] = [*schema.get("allOf", ()), format_schema(name)]


def _allows_strings(schema: dict[str, Any]) -> bool:
    types = schema.get("type", "string")
    return types == "string" or "string" in types


def _refusal(message: str, path: Path, hint: str | None = None) -> GrammarError:
    return GrammarError(message, where=pointer(path), hint=hint)


def _check_keyword(keyword: str, value: Any, path: Path, schema: dict[str, Any]) -> None:
    if keyword in REFUSED:
        if keyword == "uniqueItems" and value is False:
            return
        raise _refusal(
            f"the schema keyword {keyword!r} is not supported",
            path,
            "remove it, and check the finished value instead",
        )
    if keyword not in ENFORCED:
        return
    if keyword == "type":
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(n, str) and n in TYPES for n in names):
            raise _refusal(f"'type' must name JSON types, not {value!r}"[:200], path)
    elif keyword in _COUNTS:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
            raise _refusal(f"{keyword!r} must be a whole number up to {MAX_COUNT:,}", path)
    elif keyword in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _refusal(f"{keyword!r} must be a number", path)
        if keyword == "multipleOf" and value <= 0:
            raise _refusal("'multipleOf' must be above 0", path)
    elif keyword == "enum":
        if not isinstance(value, list) or not value:
            raise _refusal("'enum' must be an array of at least one value", path)
        if len(value) > MAX_ENUM:
            raise _refusal(f"'enum' has {len(value):,} values; the limit is {MAX_ENUM:,}", path)
    elif keyword in ("pattern", "format", "$ref"):
        if not isinstance(value, str):
            raise _refusal(f"{keyword!r} must be a string", path)
        if keyword == "pattern":
            _check_pattern(value, path)
        if keyword == "format" and value not in FORMATS and _allows_strings(schema):
            raise _refusal(
                f"the format {value[:60]!r} is not supported",
                path,
                f"known are {', '.join(sorted(FORMATS))}; or use 'pattern'",
            )
    elif keyword == "required":
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise _refusal("'required' must be an array of strings", path)
    elif keyword in ("properties", "patternProperties"):
        if not isinstance(value, dict):
            raise _refusal(f"{keyword!r} must be an object", path)
        if keyword == "patternProperties":
            for pattern in value:
                _check_pattern(pattern, (*path, pattern))
    elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems") and (
        not isinstance(value, list) or not value
    ):
        raise _refusal(f"{keyword!r} must be a non-empty array of schemas", path)


def _check_pattern(pattern: str, path: Path) -> None:
    try:
        check_regex(pattern)
    except GrammarError as error:
        raise _refusal(error.message, path, error.hint) from None


def _subschemas(root: Any, schema: dict[str, Any], path: Path) -> Iterator[tuple[Any, Path]]:
    """Schemas that take part in validation below this one."""
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
        if isinstance(schema.get(keyword), list):
            for i, item in enumerate(schema[keyword]):
                yield item, (*path, keyword, i)
    for keyword in ("properties", "patternProperties"):
        for name, item in schema.get(keyword, {}).items():
            yield item, (*path, keyword, name)
    for keyword in ("items", "additionalProperties", "additionalItems"):
        if keyword in schema and not isinstance(schema[keyword], list):
            yield schema[keyword], (*path, keyword)
    if "$ref" in schema:
        yield _resolve(root, schema["$ref"], (*path, "$ref"))


def _resolve(root: Any, reference: str, path: Path) -> tuple[Any, Path]:
    """The target of a local reference. Only ``#`` and ``#/json/pointer`` can be followed."""
    if reference != "#" and not reference.startswith("#/"):
        raise _refusal(
            f"the reference {reference[:80]!r} leaves the schema",
            path,
            "put the schema under $defs and refer to it as #/$defs/NAME",
        )
    target, at = root, list[str | int]()
    for part in reference[2:].split("/") if reference != "#" else []:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
            at.append(key)
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
            at.append(int(key))
        else:
            raise _refusal(f"the reference {reference[:80]!r} points at nothing", path)
    return target, tuple(at)
