"""The constraints of the eight programs, in the forms that engines take, and whether a text meets them."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["CONSTRAINTS", "asked", "count_valid", "valid"]

LETTERS = [" A", " B", " C", " D"]
GRADES = ["1", "2", "3", "4", "5"]
NUMBER = "[0-9]{1,4}"
OUTLINE = r"1\. [A-Za-z ]{6,24}\n2\. [A-Za-z ]{6,24}\n3\. [A-Za-z ]{6,24}\n4\. [A-Za-z ]{6,24}"
ACTION = r" (search|lookup|calculate)\[[a-z0-9 ]{1,24}\]"


class Decision(BaseModel):
    """A judge's last word."""

    model_config = ConfigDict(extra="forbid")

    grade: Literal["A", "B", "C", "D"]
    publish: bool


class Sheet(BaseModel):
    """A character of a story."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=24)
    age: int = Field(ge=0, le=120)
    trade: Literal["sailor", "baker", "teacher", "smith", "doctor", "farmer"]
    home: str = Field(max_length=24)
    alive: bool
    mood: Literal["calm", "angry", "cheerful", "worried"]
    belongings: list[str] = Field(min_length=2, max_length=2)
    enemy: str = Field(max_length=24)


CONSTRAINTS: dict[str, list[str] | str | type[BaseModel]] = {
    "letter": LETTERS,
    "grade": GRADES,
    "number": NUMBER,
    "outline": OUTLINE,
    "action": ACTION,
    "decision": Decision,
    "sheet": Sheet,
}
"""Choices, a regular expression or a model, by the name that a call has for it."""

_GRAMMARS = {
    "number": "root ::= [0-9] ([0-9] ([0-9] [0-9]?)?)?",
    "outline": 'root ::= "1. " line "\\n2. " line "\\n3. " line "\\n4. " line\nline ::= [A-Za-z ]{6,24}',
    "action": 'root ::= " " ("search" | "lookup" | "calculate") "[" [a-z0-9 ]{1,24} "]"',
}
"""The regular expressions as GBNF, for an engine that knows no others."""

_IN_RESULTS = {
    "few_shot": {"letter": "letter"},
    "chat": {},
    "tree_of_thought": {"grades": "grade", "number": "number"},
    "skeleton": {"outline": "outline"},
    "judge": {"grades": "grade", "decision": "decision"},
    "agent": {"actions": "action"},
    "character": {"sheet": "sheet"},
    "self_consistency": {},
}
"""Which values of a program's result were constrained by what."""


def asked(name: str) -> dict[str, Any]:
    """A constraint as data for a worker: ``choices``, ``regex`` and ``gbnf``, or ``schema``."""
    constraint = CONSTRAINTS[name]
    if isinstance(constraint, list):
        return {"choices": constraint}
    if isinstance(constraint, str):
        return {"regex": constraint, "gbnf": _GRAMMARS[name]}
    return {"schema": constraint.model_json_schema()}


def valid(name: str, text: str) -> bool:
    """Whether a text meets the constraint."""
    constraint = CONSTRAINTS[name]
    if isinstance(constraint, list):
        return text in constraint
    if isinstance(constraint, str):
        return re.fullmatch(constraint, text) is not None
    try:
        constraint.model_validate_json(text, strict=True)
    except ValidationError:
        return False
    return True


def count_valid(program: str, result: dict[str, Any]) -> tuple[int, int]:
    """How many constrained texts of a program's result are valid, and how many there are."""
    checks = [
        valid(name, text)
        for key, name in _IN_RESULTS[program].items()
        for text in (result[key] if isinstance(result[key], list) else [result[key]])
    ]
    return sum(checks), len(checks)
