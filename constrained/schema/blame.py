"""Which place of a schema an error without one is about."""

from __future__ import annotations

import re
from typing import Any

from stolon.constrained.json_text import pointer
from stolon.constrained.schema.normaliser import Normaliser
from stolon.constrained.schema.terms import Path, Term

__all__ = ["blame"]

_QUOTED = re.compile(r"'(\w+)'")
_IN_PLACE = ("allOf", "anyOf", "oneOf")


def blame(normaliser: Normaliser, term: Term, message: str) -> str | None:
    """A pointer to the keyword that a message quotes, or else to the schema of a term."""
    quoted = _QUOTED.search(message)
    paths = list(_paths(term))
    todo, seen = list(reversed(paths)), set[Path]()
    while quoted and todo:
        path = todo.pop()
        schema = normaliser.schema(path)
        if path in seen or not isinstance(schema, dict):
            continue
        seen.add(path)
        if quoted.group(1) in schema:
            return pointer((*path, quoted.group(1)))
        todo += _in_place(normaliser, schema, path)
    return pointer(paths[0]) if paths else None


def _paths(term: Term) -> list[Path]:
    if term.kind == "at":
        return [term.args]
    if term.kind == "not":
        return _paths(term.args)
    return [p for part in term.args for p in _paths(part)] if term.kind in ("all", "any") else []


def _in_place(normaliser: Normaliser, schema: dict[str, Any], path: Path) -> list[Path]:
    found = [(*path, k, i) for k in _IN_PLACE for i in range(len(schema.get(k, ())))]
    found += [(*path, k) for k in ("not", "if", "then", "else") if k in schema]
    if "$ref" in schema:
        found.append(normaliser.resolve(schema["$ref"], (*path, "$ref")))
    return found[::-1]
