"""Schemas that llguidance's own JSON Schema front end enforces exactly, as they are."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

from stolon.constrained.regex_parser import parse_ecma_search
from stolon.constrained.regex_print import to_rust
from stolon.constrained.schema.drafts import KNOWN
from stolon.constrained.schema.formats import ENFORCED_FORMATS, STANDARD_FORMATS, format_rust
from stolon.constrained.schema.keywords import MAX_COUNT, check_keywords
from stolon.constrained.schema.numbers import MAX_REMAINDERS, lcm, remainders
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
MAX_SCHEMAS = 50_000
"""Places translated, each as often as references lead to one around it. llguidance takes no more."""
_SINGLE_VALUES = frozenset(
    (
        *("type", "pattern", "minLength", "maxLength", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
_PATTERNS = frozenset(("pattern", "allOf"))
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
    try:
        return _Translation(document).root()
    except GrammarError:
        return None  # said again, with its place, when the schema is rewritten


class _Translation:
    """A copy of one document without what says nothing. Values are shared with the document.

    What references lead to is put under ``$defs`` with short names, and so are descriptions of single
    values that come more than once: llguidance works out what is inline once for each place.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        self._names: dict[Path, str] = {(): ""}
        self._references: dict[str, str] = {}
        self._todo: list[Path] = []
        self._definitions: dict[str, Any] = {}
        self._count = 0
        self._divisor = Fraction(1)
        self._inside_one_of = 0
        self._one_of_refers = False
        self._places: dict[Any, list[tuple[dict[str, Any], str]]] = {}

    def root(self) -> Any:
        """Raises GrammarError where it can't be had."""
        root = self._schema(self._document)
        while self._todo:
            path = self._todo.pop()
            self._definitions[self._names[path]] = self._schema(look_up(self._document, path))
        self._share()
        if self._definitions:
            root["$defs"] = self._definitions
        return root

    def _schema(self, schema: Any) -> Any:
        if isinstance(schema, bool):
            return schema
        self._count += 1
        if not isinstance(schema, dict) or self._count > MAX_SCHEMAS:
            raise _unsuited()
        check_keywords(schema, ())
        if not _is_direct(schema):
            raise _unsuited()
        if "multipleOf" in schema:
            self._divide(Fraction(str(schema["multipleOf"])))
        out: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword not in KNOWN:
                continue
            if keyword in _MAPS:
                out[keyword] = {name: self._schema(item) for name, item in value.items()}
            elif keyword in _LISTS:
                out[keyword] = self._list(keyword, value)
            elif keyword in _SINGLE:
                out[keyword] = self._schema(value)
            else:
                out[keyword] = self._reference(value) if keyword == "$ref" else value
        if not _CHANGING.isdisjoint(out):
            _settle(out)
        for keyword in _MAPS:
            if keyword in out:
                members = out[keyword]
                for name in members:
                    self._note(members, name)
        for keyword in _SINGLE:
            if keyword in out:
                self._note(out, keyword)
        return out

    def _divide(self, step: Fraction) -> None:
        """Leave divisors to the rewriting where llguidance could take long over one, or several together."""
        self._divisor = lcm(self._divisor, step)
        if max(remainders(step), remainders(self._divisor)) > MAX_REMAINDERS:
            raise _unsuited()

    def _list(self, keyword: str, schemas: list[Any]) -> list[Any]:
        self._inside_one_of += keyword == "oneOf"
        found = [self._schema(schema) for schema in schemas]
        self._inside_one_of -= keyword == "oneOf"
        return found

    def _reference(self, reference: str) -> str:
        if self._inside_one_of:
            self._one_of_refers = True
        found = self._references.get(reference)
        if found is None:
            path = resolve(self._document, reference, ())
            if path not in self._names:
                self._names[path] = f"d{len(self._names)}"
                self._todo.append(path)
            found = f"#/$defs/{self._names[path]}" if path else "#"
            self._references[reference] = found
        return found

    def _note(self, holder: dict[str, Any], name: str) -> None:
        """Take note of a translated schema if it may be shared."""
        schema = holder[name]
        if not schema or schema is True or not _is_of_single_values(schema):
            return
        if not self._inside_one_of or not _PATTERNS.isdisjoint(schema):
            key = tuple([(k, repr(v) if type(v) is list else v) for k, v in schema.items()])
            self._places.setdefault(key, []).append((holder, name))

    def _share(self) -> None:
        """Refer to one definition from all places that say the same of a single value.

        Not where alternatives exclude each other: llguidance does not look behind references for that. Of
        patterns, which take it long, that is no loss: they tell no alternatives apart.
        """
        for places in self._places.values():
            holder, name = places[0]
            if len(places) == 1 or (self._one_of_refers and _PATTERNS.isdisjoint(holder[name])):
                continue
            shared = f"s{len(self._definitions)}"
            self._definitions[shared] = holder[name]
            for holder, name in places:
                holder[name] = {"$ref": f"#/$defs/{shared}"}


def _unsuited() -> GrammarError:
    return GrammarError("the schema has to be rewritten")


def _is_of_single_values(schema: dict[str, Any]) -> bool:
    """Whether a translated schema holds no others, but for the patterns of formats."""
    keywords = schema.keys()
    return keywords <= _SINGLE_VALUES or (
        keywords - _SINGLE_VALUES == {"allOf"}
        and all(one.keys() <= _SINGLE_VALUES for one in schema["allOf"])
    )


def _is_direct(schema: dict[str, Any]) -> bool:
    if not _REWRITTEN.isdisjoint(schema) and not all(
        _says_nothing(keyword, schema) for keyword in _REWRITTEN & schema.keys()
    ):
        return False
    if schema.get("minProperties", 0) > 1 and schema.get("additionalProperties") is not False:
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
