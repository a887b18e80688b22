"""Exactly one of a few strings."""

from __future__ import annotations

import json

from stolon.constrained.json_text import parse_json
from stolon.errors import GrammarError

__all__ = ["MAX_CHOICES", "choices_to_lark", "parse_choices"]

MAX_CHOICES = 4096


def parse_choices(text: str) -> list[str]:
    """The strings of a choice spec's JSON array. Raises GrammarError with a JSON pointer."""
    values = parse_json(text)
    if not isinstance(values, list) or not values:
        raise GrammarError("choices must be a JSON array of at least one string", where="/")
    if len(values) > MAX_CHOICES:
        raise GrammarError(
            f"{len(values):,} choices are too many", hint=f"the limit is {MAX_CHOICES:,}"
        )
    seen: set[str] = set()
    for i, value in enumerate(values):
        if not isinstance(value, str) or not value:
            raise GrammarError("a choice must be a non-empty string", where=f"/{i}")
        if value in seen:
            raise GrammarError(f"the choice {value[:60]!r} occurs twice", where=f"/{i}")
        seen.add(value)
    return [str(value) for value in values]


def choices_to_lark(choices: list[str]) -> str:
    """A Lark grammar of one terminal: being one lexeme, no choice hides another that it begins."""
    return "start: CHOICE\nCHOICE: " + "\n  | ".join(map(lark_string, choices)) + "\n"


def lark_string(text: str) -> str:
    """Text as a Lark string literal."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
