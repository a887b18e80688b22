"""Dialects: a metaschema of one's own may leave whole groups of keywords out."""

from __future__ import annotations

from typing import Any

from stolon.errors import GrammarError

__all__ = ["without_meaning"]

_GROUPS = {
    "validation": frozenset(
        (
            *("type", "enum", "const", "pattern", "required", "dependentRequired", "multipleOf"),
            *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems"),
            *("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"),
            *("minProperties", "maxProperties"),
        )
    ),
    "applicator": frozenset(
        (
            *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"),
            *("prefixItems", "items", "additionalItems", "contains", "propertyNames"),
            *("properties", "patternProperties", "additionalProperties"),
        )
    ),
    "unevaluated": frozenset(("unevaluatedItems", "unevaluatedProperties")),
}
_KNOWN = frozenset(
    (*_GROUPS, "core", "meta-data", "content", "format", "format-annotation", "format-assertion")
)
_EVERYTHING: frozenset[str] = frozenset()


def without_meaning(metaschema: Any, where: str) -> frozenset[str]:
    """The keywords that a metaschema leaves out; none for None or one that lists no vocabularies.

    Raises:
        GrammarError: it demands a vocabulary that is not known here.
    """
    listed = metaschema.get("$vocabulary") if isinstance(metaschema, dict) else None
    if not isinstance(listed, dict):
        return _EVERYTHING
    used: set[str] = set()
    for address, needed in listed.items():
        official = address.startswith("https://json-schema.org/draft/")
        name = address.rpartition("/")[2]
        if official and name in _KNOWN:
            used.add(name)
        elif needed:
            raise GrammarError(
                f"the metaschema demands the unknown vocabulary {address[:100]!r}", where=where
            )
    if "draft/2019-09" in "".join(listed):
        used.add("unevaluated")  # part of the applicators there; harmless where those are left out
    return frozenset().union(*(words for name, words in _GROUPS.items() if name not in used))
