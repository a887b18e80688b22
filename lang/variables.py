"""What a variable of a program can be besides a plain value: text that may still be on its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stolon.errors import InvalidRequest, UnknownVariable
from stolon.lang.calls import Call, Item, Sample, calls_of, item_text
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


def check_name(name: object) -> None:
    """Raise InvalidRequest for what is no name of a variable."""
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            f"the name of a variable must be a non-empty string, not {name!r}",
            param="name",
            where=program_line(),
        )


class Variables(Mapping[str, Any]):
    """The variables of a branch: its own over those it was forked with.

    Attributes:
        inherited: as they were at the fork; shared between branches and never changed.
        own: set since.
    """

    __slots__ = ("inherited", "own")

    def __init__(self, inherited: Mapping[str, Any] | None = None) -> None:
        self.inherited: Mapping[str, Any] = {} if inherited is None else inherited
        self.own: dict[str, Any] = {}

    def snapshot(self) -> Mapping[str, Any]:
        """As they are now, to be inherited. A scope belongs to the ``with`` of the branch that opened it."""
        if not self.own:
            return self.inherited
        return {name: value for name, value in self.items() if not isinstance(value, OpenScope)}

    def changes(self) -> Iterator[str]:
        """Names that have another value than at the fork."""
        for name, value in self.own.items():
            if self.inherited.get(name, _ABSENT) is not value:
                yield name

    def __setitem__(self, name: str, value: Any) -> None:
        self.own[name] = value

    def __getitem__(self, name: str) -> Any:
        value = self.own.get(name, _ABSENT)
        return self.inherited[name] if value is _ABSENT else value

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.inherited

    def __iter__(self) -> Iterator[str]:
        yield from self.inherited
        yield from [name for name in self.own if name not in self.inherited]

    def __len__(self) -> int:
        return len(self.inherited) + sum(name not in self.inherited for name in self.own)


_ABSENT = object()


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
    elif isinstance(variable, Sample):
        yield variable.call
    elif isinstance(variable, Span):
        yield from calls_of(variable.items)
    elif isinstance(variable, Gathered):
        for value in variable.values:
            yield from waits_for(value)


def resolve(variable: Any, *, typed: bool = False) -> Any:
    """The value of a variable whose calls are all settled; raises the error of one that failed."""
    if isinstance(variable, Call):
        return variable.typed() if typed else variable.value()
    if isinstance(variable, Sample):
        call, sample = variable.call, variable.sample
        return call.typed(sample) if typed else call.text(sample)
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
