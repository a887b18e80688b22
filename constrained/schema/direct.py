"""Schemas that llguidance's own JSON Schema front end enforces exactly, as they are."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from stolon.constrained.schema.direct_keywords import is_direct, settle
from stolon.constrained.schema.drafts import KNOWN
from stolon.constrained.schema.keywords import check_keywords
from stolon.constrained.schema.numbers import MAX_BOUNDED, digits_of, is_fine, lcm
from stolon.constrained.schema.pointers import look_up, resolve
from stolon.constrained.schema.terms import Path
from stolon.errors import GrammarError

__all__ = ["direct_schema"]

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties")
_SINGLE = ("items", "additionalProperties")
MAX_SCHEMAS = 50_000
"""Places translated, each as often as references lead to one around it. llguidance takes no more."""
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_SINGLE_VALUES = _BOUNDS | {"type", "pattern", "minLength", "maxLength", "multipleOf"}
_PATTERNS = frozenset(("pattern", "allOf"))


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
        if not is_direct(schema):
            raise _unsuited()
        if "multipleOf" in schema:
            self._divide(Fraction(str(schema["multipleOf"])))
        if any(is_fine(Fraction(str(schema[bound]))) for bound in _BOUNDS & schema.keys()):
            raise _unsuited()
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
        settle(out)
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
        if max(digits_of(step), digits_of(self._divisor)) > MAX_BOUNDED:
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
