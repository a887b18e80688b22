"""Local references of a self-contained schema."""

from __future__ import annotations

from typing import Any

from stolon.constrained.schema.keywords import refusal
from stolon.constrained.schema.terms import Path

__all__ = ["look_up", "resolve"]


def resolve(document: Any, reference: str, path: Path) -> Path:
    """The path of the target of ``#`` or ``#/json/pointer``. Raises GrammarError at `path`."""
    if reference != "#" and not reference.startswith("#/"):
        raise refusal(f"the reference {reference[:80]!r} leaves the schema", path)
    found, at = document, list[str | int]()
    for part in reference[2:].split("/") if reference != "#" else []:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
            at.append(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
            at.append(int(key))
        else:
            raise refusal(f"the reference {reference[:80]!r} points at nothing", path)
    return tuple(at)


def look_up(document: Any, path: Path) -> Any:
    """What a document has at a path that exists."""
    for part in path:
        document = document[part]
    return document
