"""Leaving out what can't be enforced, when the caller asked for it, and saying what that was."""

from __future__ import annotations

from typing import Any

from stolon.constrained.json_text import pointer
from stolon.constrained.schema.terms import Path
from stolon.errors import GrammarError

__all__ = ["relax"]

# Below these, less asked for can mean less allowed: they are left out as a whole.
_TURNING = frozenset(("not", "if", "contains", "propertyNames"))
_NAMES = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
_DATA = frozenset(("const", "enum", "default", "examples"))


def relax(root: Any, error: GrammarError) -> str:
    """Take out of a schema the keyword that an error is about. The schema is changed in place.

    Everything that was allowed stays allowed.

    Returns:
        A pointer to what is no longer enforced.

    Raises:
        GrammarError: the error itself, if it is about no keyword.
    """
    path: list[str | int] = []
    holder: Any = None
    at = root
    for part in _parts(error.where):
        if isinstance(at, list) and part.isdecimal() and int(part) < len(at):
            key: str | int = int(part)
        elif isinstance(at, dict) and part in at:
            key = part
        else:
            break
        if isinstance(at, dict) and key == "oneOf" and not _holds_names(path):
            _to_any_of(at)
            return pointer((*path, key))
        holder, at = at, at[key]
        path.append(key)
        if not _holds_names(path[:-1]) and (key in _TURNING or key in _DATA):
            break
    if holder is None:
        raise error
    if isinstance(path[-1], int) or _holds_names(path[:-1]):
        holder[path[-1]] = True  # a schema in an array or under a name stays: it allows everything
    else:
        del holder[path[-1]]
    return pointer(tuple(path))


def _parts(where: str | None) -> list[str]:
    if not where or where == "/":
        return []
    return [p.replace("~1", "/").replace("~0", "~") for p in where[1:].split("/")]


def _holds_names(path: Path | list[str | int]) -> bool:
    """Whether the keys at a path are names that the schema's author chose."""
    return bool(path) and path[-1] in _NAMES and not _holds_names(path[:-1])


def _to_any_of(schema: dict[str, Any]) -> None:
    branches = schema.pop("oneOf")
    if "anyOf" not in schema:
        schema["anyOf"] = branches
