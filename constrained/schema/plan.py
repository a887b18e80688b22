"""How a JSON Schema is compiled: as it is where llguidance enforces all of it, else rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stolon.constrained.json_text import parse_json
from stolon.constrained.schema.best_effort import relax
from stolon.constrained.schema.budget import Budget, TooComplex
from stolon.constrained.schema.bundle import Bundle, bundle
from stolon.constrained.schema.direct import direct_schema
from stolon.constrained.schema.grammar import SEPARATORS, schema_to_lark
from stolon.errors import GrammarError, UnsatisfiableGrammar

__all__ = ["SchemaText", "json_source", "schema_sources"]

MAX_DROPPED = 64


class SchemaText:
    """The JSON text of a schema, read once for whoever translates it.

    Raises GrammarError for what is no JSON.
    """

    def __init__(self, text: str) -> None:
        self.root = parse_json(text)
        self._bundled: Bundle | None = None

    def bundled(self) -> Bundle:
        """The schema as one document. Raises GrammarError."""
        if self._bundled is None:
            self._bundled = bundle(self.root)
        return self._bundled

    def relax(self, error: GrammarError) -> str:
        """Leave out what an error is about; returns its place. Raises the error if it names none."""
        self._bundled = None
        return relax(self.root, error)


def schema_sources(
    schema: SchemaText,
    *,
    whitespace: str,
    best_effort: bool = False,
    budget: Budget | None = None,
) -> Iterator[str]:
    """llguidance sources for a schema, the cheapest first.

    A later one is for when llguidance refuses the one before. Each is exact, unless the caller asked
    for `best_effort`: then the last one may leave keywords out, which it lists as ``dropped``.

    Raises:
        TooComplex: rewriting it takes more than the budget.
        UnsatisfiableGrammar: no value satisfies the schema.
        GrammarError: not a schema, or it can't be expressed; `where` is a JSON pointer.
    """
    dropped: list[str] = []
    while True:
        try:
            bundled = schema.bundled()
            direct = direct_schema(bundled.document)
            if direct is not None:
                source = json_source(direct, whitespace)
                yield _with_dropped(source, dropped)
            try:
                lark = schema_to_lark(bundled.document, whitespace=whitespace, budget=budget)
            except GrammarError as error:
                if error.where is not None:
                    error.where = bundled.where(error.where)
                raise
            yield _with_dropped(_encode({"grammars": [{"lark_grammar": lark}]}), dropped)
            return
        except (TooComplex, UnsatisfiableGrammar):
            raise
        except GrammarError as error:
            if not best_effort or len(dropped) >= MAX_DROPPED:
                raise
            dropped.append(_as_given(schema.relax(error), dropped))


def _as_given(pointer: str, dropped: list[str]) -> str:
    """The pointer in the caller's schema, where a oneOf may have become an anyOf."""
    for earlier in dropped:
        if earlier.endswith("/oneOf") and pointer.startswith(f"{earlier[:-5]}anyOf/"):
            pointer = earlier + pointer[len(earlier) :]
    return pointer


def _with_dropped(source: str, dropped: list[str]) -> str:
    return json.dumps({**json.loads(source), "dropped": dropped}) if dropped else source


def json_source(schema: Mapping[str, Any], whitespace: str) -> str:
    """The source of a schema that llguidance enforces."""
    item, key = SEPARATORS[whitespace]
    guidance = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
    return _encode({"grammars": [{"json_schema": {**schema, "x-guidance": guidance}}]})


def _encode(value: Any) -> str:
    # Ten times faster than json's: the interpreter lock is held for 0.2 ms even by the longest schema.
    return msgspec.json.encode(value).decode()
