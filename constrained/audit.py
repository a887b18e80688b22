"""The check of schemas that stand inside other grammars, where nothing is rewritten."""

from __future__ import annotations

from typing import Any

from stolon.constrained.json_text import parse_json
from stolon.constrained.schema.direct import direct_schema
from stolon.constrained.schema.grammar import schema_to_lark
from stolon.errors import GrammarError

__all__ = ["audit_schema"]


def audit_schema(text: str) -> Any:
    """The schema, with exact patterns, if llguidance enforces all of it. Raises GrammarError."""
    schema = parse_json(text)
    direct = direct_schema(schema)
    if direct is None:
        schema_to_lark(schema)
        raise GrammarError("this JSON schema can only be enforced on its own, not inside a grammar")
    return direct
