"""The drafts of JSON Schema: which keywords each has, where schemas are found, how it names itself.

A schema without ``$schema`` is read as 2020-12 that also understands the older spellings whose
meaning can't be mistaken (an array under ``items``, ``dependencies``, a boolean
``exclusiveMinimum``). A schema that names its draft is read by that draft alone: keywords of later
drafts are names without meaning there, as the standard says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stolon.errors import GrammarError

__all__ = [
    "ANY_DRAFT",
    "DRAFTS",
    "KNOWN",
    "LISTS",
    "MAPS",
    "SINGLES",
    "Draft",
    "detect",
    "named",
    "respell",
]

SINGLES = frozenset(
    (
        *("additionalProperties", "additionalItems", "items", "contains", "not", "propertyNames"),
        *("if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
    )
)
"""Keywords whose value is a schema (``items`` may be an array of them in older drafts)."""
LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
"""Keywords whose value is an array of schemas."""
MAPS = frozenset(("properties", "patternProperties", "dependentSchemas"))
"""Keywords whose value is an object of schemas."""

_DRAFT4 = frozenset(
    (
        *("$ref", "type", "enum", "allOf", "anyOf", "oneOf", "not", "pattern", "format"),
        *("properties", "patternProperties", "additionalProperties", "required", "dependencies"),
        *("minProperties", "maxProperties", "items", "additionalItems", "uniqueItems"),
        *("minItems", "maxItems", "minLength", "maxLength", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
_DRAFT6 = _DRAFT4 | {"const", "contains", "propertyNames"}
_DRAFT7 = _DRAFT6 | {"if", "then", "else"}
_DRAFT2019 = _DRAFT7 | {
    *("dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"),
    *("minContains", "maxContains", "$recursiveRef"),
}
_DRAFT2020 = (_DRAFT2019 - {"additionalItems", "$recursiveRef"}) | {"prefixItems", "$dynamicRef"}
KNOWN = _DRAFT2019 | _DRAFT2020
"""Every keyword that asserts something in some draft since 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """How one draft is read.

    Attributes:
        name: as in the address of its metaschema.
        keywords: the asserting keywords it has; others of `KNOWN` are annotations to it.
        id: the keyword that names a schema.
        ref_alone: whether everything beside ``$ref`` is ignored.
        tuples: whether ``items`` may be an array.
        boolean_bounds: whether ``exclusiveMinimum: true`` modifies ``minimum``.
        anchors: whether ``$anchor`` exists (before, a plain name after ``#`` in the id was one).
        nullable: whether ``nullable: true`` adds null to the type beside it.
    """

    name: str
    keywords: frozenset[str]
    id: str = "$id"
    ref_alone: bool = False
    tuples: bool = True
    boolean_bounds: bool = False
    anchors: bool = True
    nullable: bool = False


def _old(name: str, keywords: frozenset[str], **options: Any) -> Draft:
    return Draft(name=name, keywords=keywords, ref_alone=True, anchors=False, **options)


DRAFTS = {
    draft.name: draft
    for draft in (
        _old("openapi-3.0", _DRAFT4, id="", boolean_bounds=True, nullable=True),
        _old("draft-04", _DRAFT4, id="id", boolean_bounds=True),
        _old("draft-06", _DRAFT6),
        _old("draft-07", _DRAFT7),
        Draft(name="2019-09", keywords=_DRAFT2019 | {"dependencies"}),
        Draft(name="2020-12", keywords=_DRAFT2020 | {"dependencies"}, tuples=False),
    )
}
ANY_DRAFT = Draft(name="any", keywords=KNOWN, boolean_bounds=True)
"""For a schema that does not say which draft it is written in."""

_ADDRESS = re.compile(
    r"https?://json-schema\.org/(?:draft/)?(draft-0[0-9]|2019-09|2020-12)/(?:hyper-)?schema#?$"
)


def named(name: str) -> Draft:
    """The draft of that name, in any usual spelling: ``2020-12``, ``draft2020-12``, ``draft7``.

    Raises:
        GrammarError: there is no such draft, or it is not supported.
    """
    short = name.removeprefix("draft").lstrip("-") if not name.startswith("openapi") else name
    short = f"draft-{int(short):02d}" if short.isdecimal() and len(short) < 3 else short
    draft = DRAFTS.get(short)
    if draft is None:
        raise GrammarError(
            f"the JSON Schema draft {name[:40]!r} is not supported",
            hint=f"known are {', '.join(DRAFTS)}",
        )
    return draft


def detect(address: str) -> Draft | None:
    """The draft that a ``$schema`` names; None for an address that is no draft's metaschema.

    Raises:
        GrammarError: a draft before 4.
    """
    found = _ADDRESS.match(address)
    if found:
        return named(found[1])
    if "spec.openapis.org/oas/3.0" in address:
        return DRAFTS["openapi-3.0"]
    return None


def respell(schema: dict[str, Any], draft: Draft) -> None:
    """Change what a draft says with two keywords of one schema into 2020-12, in place."""
    if draft.boolean_bounds:
        _boolean_bounds(schema)
    if draft.nullable:
        _nullable(schema)


def _boolean_bounds(out: dict[str, Any]) -> None:
    """``minimum: 3, exclusiveMinimum: true`` is ``exclusiveMinimum: 3``."""
    for exclusive, inclusive in (
        ("exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "maximum"),
    ):
        flag = out.get(exclusive)
        if isinstance(flag, bool):
            del out[exclusive]
            if flag and inclusive in out:
                out[exclusive] = out.pop(inclusive)


def _nullable(out: dict[str, Any]) -> None:
    """OpenAPI 3.0: ``nullable: true`` beside a ``type`` adds null to it (an enum still rules)."""
    kind = out.get("type")
    if out.pop("nullable", None) is True and isinstance(kind, str):
        out["type"] = [kind, "null"]
