"""Whether a schema is in the form that `bundle` would give it, found out in one quick pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stolon.constrained.json_text import MAX_DEPTH
from stolon.constrained.schema.drafts import ANY_DRAFT, KNOWN, Draft, detect

__all__ = ["is_plain"]

_NAMES = frozenset(
    (
        *("$anchor", "$dynamicAnchor", "$recursiveAnchor", "$dynamicRef", "$recursiveRef"),
        *("$vocabulary", "dependencies", "additionalItems"),
    )
)
_TELLING = frozenset(("$ref", "items", "exclusiveMinimum", "exclusiveMaximum"))
_CONTAINERS = (dict, list)


def is_plain(root: dict[str, Any], default: Draft | None) -> bool:
    """True only if nothing has to be rewritten. Data that looks like a keyword counts as one.

    Of ids only the root's is let pass: without it the references left mean the same.
    """
    address = root.get("$schema", "")
    draft = detect(address) if address and isinstance(address, str) else None
    if draft is None and "$schema" in root:
        return False
    draft = draft or default or ANY_DRAFT
    special = _NAMES | (KNOWN - draft.keywords)
    if draft.nullable:
        special |= {"nullable"}
    if draft.name == "2019-09":
        special |= {"unevaluatedItems"}
    telling = special | _TELLING | {draft.id}
    references: dict[str, dict[str, Any]] = {}
    level: list[Any] = [root]
    for _ in range(2 * MAX_DEPTH + 1):
        below: list[Any] = []
        for value in level:
            if type(value) is dict:
                if not telling.isdisjoint(value) and not (
                    special.isdisjoint(value) and _says_it_plainly(value, root, draft, references)
                ):
                    return False
                value = value.values()
            below += [v for v in value if type(v) in _CONTAINERS]
        if not below:
            return _all_lead_somewhere(root, references)
        level = below
    return False


def _says_it_plainly(
    value: dict[str, Any], root: Any, draft: Draft, references: dict[str, dict[str, Any]]
) -> bool:
    """Whether the keywords of `_TELLING` and the id are used in a way that needs no rewriting."""
    id = value.get(draft.id)
    if id is not None and (not isinstance(id, str) or value is not root or "#" in id.rstrip("#")):
        return False
    if "$ref" in value and not _is_plain_reference(value, draft, references):
        return False
    if draft.tuples and isinstance(value.get("items"), list):
        return False
    return not draft.boolean_bounds or not (
        isinstance(value.get("exclusiveMinimum"), bool)
        or isinstance(value.get("exclusiveMaximum"), bool)
    )


def _is_plain_reference(
    value: dict[str, Any], draft: Draft, references: dict[str, dict[str, Any]]
) -> bool:
    reference = value["$ref"]
    if not isinstance(reference, str) or (draft.ref_alone and len(value) > 1):
        return False
    if reference != "#" and (not reference.startswith("#/") or "%" in reference):
        return False
    references[reference] = value
    return True


def _all_lead_somewhere(root: dict[str, Any], references: Iterable[str]) -> bool:
    """Whether each chain of references ends at a schema that is more than a reference."""
    settled: set[str] = set()
    for reference in references:
        seen: set[str] = set()
        while reference not in settled:
            if reference in seen:
                return False
            seen.add(reference)
            value: Any = root
            for part in reference[2:].split("/") if reference != "#" else ():
                key = part.replace("~1", "/").replace("~0", "~") if "~" in part else part
                if isinstance(value, dict) and key in value:
                    value = value[key]
                elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                    value = value[int(key)]
                else:
                    return False
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                break
            reference = value["$ref"]
        settled |= seen
    return True
