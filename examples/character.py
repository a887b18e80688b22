"""A character sheet, with types in and types out: the answer is an instance, not a text to be parsed.

python examples/character.py "a shy dragon who collects teapots"
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

from _frame import frame
from pydantic import Field

import stolon as sl

Skill = Annotated[int, Field(ge=1, le=20)]
Word = Annotated[str, Field(pattern="^[A-Za-z' -]{3,20}$")]


class House(Enum):
    forest = "of the forest"
    sea = "of the sea"
    hills = "of the hills"


@dataclass
class Character:
    name: Annotated[str, Field(pattern="^[A-Z][a-z]{2,9}$")]
    house: House
    mood: Literal["brave", "shy", "grim", "merry"]
    strength: Skill
    wit: Skill
    belongings: Annotated[list[Word], Field(min_length=2, max_length=3)]
    companion: Word | None


@sl.function
def create(s: sl.ProgramState, idea: str) -> None:
    s += sl.user(f"Write the character sheet of {idea}, as JSON.")
    s += sl.assistant(sl.gen("sheet", schema=Character, max_tokens=120, close_at_budget=True))
    sheet = s.value("sheet")
    s += sl.user(f"How does {sheet.name} greet a stranger?")
    s += sl.assistant(
        f"{sheet.name} says: “" + sl.gen("greeting", max_tokens=24, stop=["”", '"', "\n"])
    )


def main() -> None:
    state = create.run(" ".join(sys.argv[1:]) or "a young fox who lives in a library", seed=4)
    sheet = state.value("sheet")
    print(f"{sheet.name} {sheet.house.value}, {sheet.mood}")
    print(f"  strength {'■' * sheet.strength} {sheet.strength}")
    print(f"  wit      {'■' * sheet.wit} {sheet.wit}")
    print(f"  carries  {', '.join(sheet.belongings)}")
    print(f"  with     {sheet.companion or 'nobody'}")
    print(f"  says     “{state['greeting'].strip()}”")


if __name__ == "__main__":
    with frame():
        main()
