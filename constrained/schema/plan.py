"""How a JSON Schema is compiled: as it is where llguidance enforces all of it, else rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterator

import llguidance

from stolon.constrained.json_text import parse_json
from stolon.constrained.schema.best_effort import relax
from stolon.constrained.schema.budget import Budget, TooComplex
from stolon.constrained.schema.bundle import bundle
from stolon.constrained.schema.direct import direct_schema
from stolon.constrained.schema.grammar import SEPARATORS, schema_to_lark
from stolon.errors import GrammarError, UnsatisfiableGrammar

__all__ = ["json_source", "schema_sources"]

MAX_DROPPED = 64


def schema_sources(
    text: str, *, whitespace: str, best_effort: bool = False, budget: Budget | None = None
) -> Iterator[str]:
    """llguidance sources for the JSON text of a schema, the cheapest first.

    A later one is for when llguidance refuses the one before. Each is exact, unless the caller asked
    for `best_effort`: then the last one may leave keywords out, which it lists as ``dropped``.

    Raises:
        TooComplex: rewriting it takes more than the budget.
        UnsatisfiableGrammar: no value satisfies the schema.
        GrammarError: not a schema, or it can't be expressed; `where` is a JSON pointer.
    """
    root = parse_json(text)
    dropped: list[str] = []
    while True:
        try:
            bundled = bundle(root)
            direct = direct_schema(bundled.document)
            if direct is not None:
                yield _with_dropped(json_source(direct, whitespace), dropped)
            try:
                lark = schema_to_lark(bundled.document, whitespace=whitespace, budget=budget)
            except GrammarError as error:
                if error.where is not None:
                    error.where = bundled.where(error.where)
                raise
            yield _with_dropped(json.dumps({"grammars": [{"lark_grammar": lark}]}), dropped)
            return
        except (TooComplex, UnsatisfiableGrammar):
            raise
        except GrammarError as error:
            if not best_effort or len(dropped) >= MAX_DROPPED:
                raise
            dropped.append(_as_given(relax(root, error), dropped))


def _as_given(pointer: str, dropped: list[str]) -> str:
    """The pointer in the caller's schema, where a oneOf may have become an anyOf."""
    for earlier in dropped:
        if earlier.endswith("/oneOf") and pointer.startswith(f"{earlier[:-5]}anyOf/"):
            pointer = earlier + pointer[len(earlier) :]
    return pointer


def _with_dropped(source: str, dropped: list[str]) -> str:
    return json.dumps({**json.loads(source), "dropped": dropped}) if dropped else source


def json_source(schema: object, whitespace: str) -> str:
    """The source of a schema that llguidance enforces."""
    item, key = SEPARATORS[whitespace]
    return str(
        llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(schema),
            overrides={"whitespace_flexible": False, "item_separator": item, "key_separator": key},
        )
    )
