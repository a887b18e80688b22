"""A self-contained schema document as a Lark grammar of exactly its values."""

from __future__ import annotations

from typing import Any

from stolon.constrained.schema.budget import Budget
from stolon.constrained.schema.emit import Emitter
from stolon.constrained.schema.normaliser import Normaliser
from stolon.errors import UnsatisfiableGrammar

__all__ = ["SEPARATORS", "schema_to_lark"]

SEPARATORS = {"compact": (",", ":"), "pep": (", ", ": ")}
"""Text between items, and between a key and its value, by whitespace policy."""


def schema_to_lark(document: Any, *, whitespace: str = "pep", budget: Budget | None = None) -> str:
    """The grammar of a schema whose references are JSON pointers into the document.

    Raises:
        UnsatisfiableGrammar: no value satisfies the schema.
        GrammarError: a keyword can't be expressed; `where` is a pointer, if one is known.
    """
    normaliser = Normaliser(document, budget or Budget())
    emitter = Emitter(normaliser, *SEPARATORS[whitespace])
    try:
        text = emitter.grammar(normaliser.place(()))
    finally:
        emitter.rules.release()
        normaliser.close()
    if text is None:
        raise UnsatisfiableGrammar("no value satisfies the schema", where="/")
    return text
