"""What a type may hold that no JSON schema says, and so is refused."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

BOUNDS = ("ge", "gt", "le", "lt", "multiple_of", "now_op", "tz_constraint")
# Functions of pydantic that refuse nothing which their schema takes, or that leave it to the schema inside.
_OWN_VALIDATORS = frozenset({"<lambda>", "defaultdict_validator", "path_validator", "wrap_val"})


class NotExact(Exception):
    """A type is wider in JSON than in Python. The arguments are what it is, and a hint.

    `parts` are the core schemas that were being described, the innermost first.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.parts: tuple[Mapping[str, Any], ...] = ()


def refuse_bounds(kind: str, schema: Mapping[str, Any]) -> None:
    if any(schema.get(name) is not None for name in BOUNDS):
        raise NotExact(f"a {kind} with bounds", "take it without, and check the value")


def refuse_values(kind: str, values: Iterable[Any]) -> None:
    for value in values:
        if not isinstance(value, str | int | float | None):
            raise NotExact(
                f"{kind} of {type(value).__name__}", "values are str, int, float, bool or None"
            )


def refuse_members(schema: Mapping[str, Any], *, converted: bool) -> None:
    """Refuse a Literal of what JSON does not hold, or of members of an Enum that pydantic knows only as such.

    Members that are texts or ints themselves are read; of others, what a validator before it (`converted`)
    makes of the text.
    """
    from pydantic_core import SchemaValidator, ValidationError

    members = [value for value in schema["expected"] if isinstance(value, enum.Enum)]
    refuse_values("a Literal", [getattr(m, "value", m) for m in schema["expected"]])
    validator = SchemaValidator({"type": "literal", "expected": schema["expected"]})
    for member in () if converted else members:
        try:
            validator.validate_json(json.dumps(member.value))
        except ValidationError:
            raise NotExact(
                f"a Literal of {member}, which pydantic does not find by its value",
                "take the Enum itself, a StrEnum, or a Literal of values",
            ) from None


def refuse_unseen(schema: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Refuse a check of pydantic's own that its schema does not show. A program's checks are its own."""
    function = schema["function"]["function"]
    function = getattr(function, "func", function)
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] != "pydantic" or name in _OWN_VALIDATORS:
        return made
    kind = made.get("type")
    sized = kind in ("array", "object") or (kind == "string" and "pattern" not in made)
    sized &= made.get("format") in (None, "password") and "enum" not in made
    if name not in ("min_length_validator", "max_length_validator") or not sized:
        raise NotExact(
            "a value that only Python can check",
            "put bounds on numbers, texts and lists themselves, or take a str with a pattern",
        )
    return made


def refuse_paths(schema: Mapping[str, Any]) -> None:
    """Refuse a field whose value is looked for inside of others, and nowhere by one name."""
    alias = schema.get("validation_alias")
    if isinstance(alias, list) and not any(isinstance(p, list) and len(p) == 1 for p in alias):
        raise NotExact(
            "a field with an AliasPath", "give it a name, as the alias or one of its AliasChoices"
        )


def refuse_flags(schema: Mapping[str, Any]) -> None:
    """Refuse a compiled pattern that takes less than its text does."""
    if getattr(schema.get("pattern"), "flags", 0) & (re.IGNORECASE | re.VERBOSE):
        raise NotExact("a pattern with flags", "write out what they stand for")


def refuse_equal(items: Iterable[Mapping[str, Any]]) -> None:
    """Refuse schemas of values that differ in JSON and not in Python, where they are counted."""
    found: set[tuple[bool, Any]] = set()
    for item in items:
        kind = item.get("type")
        values = item.get("enum", [item["const"]] if "const" in item else ())
        if not values and kind in ("boolean", "integer", "number"):
            values = (False, True) if kind == "boolean" else (0, 1)
        found.update((isinstance(v, bool), v) for v in values if isinstance(v, int | float))
    if len({value for _, value in found}) < len(found):
        raise NotExact(
            "a set with min_length of values that are equal in Python, such as 1 and True",
            "leave one of them out, or take a list",
        )


def refuse_count(made: dict[str, Any]) -> None:
    """Refuse a least number of keys that a pattern describes: they may come twice, or be spelled twice."""
    if made.get("minProperties", 0) > 1:
        raise NotExact(
            "a dict with min_length above 1 of such keys", "name the keys in a Literal or an Enum"
        )
