"""Where a schema without any value contradicts itself: a place, and the keywords there that it takes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from stolon.constrained.json_text import pointer
from stolon.constrained.schema.budget import Budget
from stolon.constrained.schema.grammar import schema_to_lark
from stolon.constrained.schema.pointers import look_up
from stolon.constrained.schema.terms import Path
from stolon.errors import GrammarError, UnsatisfiableGrammar

__all__ = ["contradiction"]

MAX_TRIES = 64
"""Schemas that are looked at for one refusal."""


def contradiction(document: Any, given: Callable[[str], str]) -> UnsatisfiableGrammar | None:
    """The refusal of a self-contained schema that no value satisfies; None if some value may.

    The place is the deepest one that every value would have to satisfy, and can't; `given` tells the
    pointer in the caller's schema of one in the document.
    """
    search = _Search(document)
    path = search.deepest(())
    if path is None:
        return None
    where = given(pointer(path))
    words = search.keywords(path)
    named = ", ".join(map(repr, words)) or "the schema false"
    return UnsatisfiableGrammar(
        f"no value satisfies the schema: none can satisfy {named} at {where}",
        where=where,
        hint="change one of these keywords" if len(words) > 1 else None,
    )


class _Search:
    def __init__(self, document: Any) -> None:
        self._document = document
        self._tries = MAX_TRIES
        self._budget = Budget()

    def deepest(self, path: Path) -> Path | None:
        if not self._empty(self._document, path):
            return None
        schema = look_up(self._document, path)
        for child in _needed(schema) if isinstance(schema, dict) else ():
            found = self.deepest((*path, *child))
            if found is not None:
                return found
        return path

    def keywords(self, path: Path) -> list[str]:
        """Keywords at a place that can't be satisfied together, each of which it takes."""
        document = copy.deepcopy(self._document)
        schema = look_up(document, path)
        if not isinstance(schema, dict):
            return []
        for keyword in [word for word in schema if word not in ("$defs", "definitions")]:
            value = schema.pop(keyword)
            if not self._empty(document, path):
                schema[keyword] = value
        return [word for word in schema if word not in ("$defs", "definitions")]

    def _empty(self, document: Any, path: Path) -> bool:
        self._tries -= 1
        if self._tries < 0:
            return False
        schema = look_up(document, path)
        if path and isinstance(schema, dict) and isinstance(document, dict):
            # References lead into the document, whose definitions it has then.
            schema = {k: document[k] for k in ("$defs", "definitions") if k in document} | schema
        try:
            schema_to_lark(schema, budget=self._budget)
        except UnsatisfiableGrammar:
            return True
        except GrammarError:
            return False
        return False


def _needed(schema: dict[str, Any]) -> list[Path]:
    """Subschemas that something in every value of a schema has to satisfy."""
    found: list[Path] = [("allOf", i) for i in range(len(schema.get("allOf", ())))]
    members = schema.get("properties", {})
    found += [("properties", name) for name in schema.get("required", ()) if name in members]
    if schema.get("minItems", 0) and isinstance(schema.get("items"), dict | bool):
        found.append(("items",))
    return found
