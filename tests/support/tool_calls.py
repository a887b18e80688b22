"""Tools, calls of them as a model writes them, and an engine that says such calls."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, Field
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl


class Place(BaseModel):
    city: str


def weather(city: str, days: int = 1) -> str:
    """The weather of a city.

    Args:
        city: where, in
            English
        days: how far ahead
    """
    return f"{city}: rain for {days} days"


def distance(a: Place, b: Annotated[Place, Field(description="to")]) -> float:
    """How far apart two places are.

    :param a: from
    """
    assert isinstance(a, Place)
    return float(len(a.city) + len(b.city))


def call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def saying(*answers: str) -> FakeEngine:
    """An engine whose turns are these answers, one after the other."""
    turns = list(answers)
    return FakeEngine(
        {"answer": lambda before, segment: turns.pop(0)}, chat_template=tiny_chat_template()
    )


@sl.function
def poet(s: sl.ProgramState, about: str, style: str = "plain") -> str:
    """Write."""
    return f"{about}, {style}"
