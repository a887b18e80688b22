"""What a variable of a program can be besides a plain value: text that may still be on its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stolon.errors import InvalidRequest, UnknownVariable
from stolon.lang.calls import Call, Item, calls_of, item_text
from stolon.lang.location import program_line


@dataclass(frozen=True, slots=True)
class Span:
    """All text of a closed `var_scope`."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Gathered:
    """One value per child of a joined group, in child order; None where a child has none."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OpenScope:
    """A `var_scope` that is not closed yet."""

    name: str
    start: int


def unknown(name: str, known: Iterable[str]) -> UnknownVariable:
    """The error for reading a variable that is not there, at the line that reads it."""
    names = ", ".join(map(repr, known))
    return UnknownVariable(
        f"no variable {name!r}; variables so far: {names or 'none'}",
        where=program_line(),
        hint='a variable begins with s += sl.gen("name") or s["name"] = value; '
        '"name" in s asks for one',
    )


def waits_for(variable: Any) -> Iterator[Call]:
    """The calls that reading a variable needs."""
    if isinstance(variable, Call):
        yield variable
    elif isinstance(variable, Span):
        yield from calls_of(variable.items)
    elif isinstance(variable, Gathered):
        for value in variable.values:
            yield from waits_for(value)


def resolve(variable: Any, *, typed: bool = False) -> Any:
    """The value of a variable whose calls are all settled; raises the error of one that failed."""
    if isinstance(variable, Call):
        return variable.typed() if typed else variable.value()
    if isinstance(variable, Span):
        return "".join(map(item_text, variable.items))
    if isinstance(variable, Gathered):
        return [resolve(value, typed=typed) for value in variable.values]
    if isinstance(variable, OpenScope):
        raise InvalidRequest(
            f"variable {variable.name!r} can't be read before its var_scope is closed",
            where=program_line(),
        )
    return variable
