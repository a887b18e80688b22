"""One object of a structural tag, whose members are checked as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stolon.errors import GrammarError

__all__ = ["Part"]


class Part:
    """An object and its place, a JSON pointer. A member that is wrong raises GrammarError with its place."""

    __slots__ = ("_members", "where")

    def __init__(self, value: Any, where: str) -> None:
        self.where = where
        if not isinstance(value, dict):
            raise self.wrong("must be an object")
        self._members = value

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def only(self, *names: str) -> None:
        """Refuse members of other names."""
        for name in self._members:
            if name not in names:
                raise self.wrong("is not supported", name)

    def value(self, name: str, default: Any = None) -> Any:
        """A member as it is."""
        return self._members.get(name, default)

    def string(self, name: str, default: str | None = None) -> str:
        return self._string(self.value(name, default), name)

    def strings(self, name: str) -> list[str]:
        """A list of at least one string."""
        return [self._string(value, f"{name}/{i}") for i, value in enumerate(self._list(name))]

    def flag(self, name: str) -> bool:
        """A boolean, False unless it is given."""
        value = self.value(name, False)
        if not isinstance(value, bool):
            raise self.wrong("must be true or false", name)
        return value

    def part(self, name: str) -> Part:
        return Part(self.value(name), self.at(name))

    def parts(self, name: str) -> Iterator[Part]:
        """The objects of a list of at least one."""
        for i, value in enumerate(self._list(name)):
            yield Part(value, self.at(f"{name}/{i}"))

    def at(self, name: str) -> str:
        """The place of a member."""
        return f"{self.where}/{name}" if name else self.where

    def wrong(self, what: str, name: str = "", *, hint: str | None = None) -> GrammarError:
        """The refusal of a member, or of the whole object."""
        where = self.at(name) or "/"
        return GrammarError(f"structural tag: {where} {what}", where=where, hint=hint)

    def _list(self, name: str) -> list[Any]:
        value = self.value(name)
        if not isinstance(value, list) or not value:
            raise self.wrong("must be a list of at least one", name)
        return value

    def _string(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise self.wrong("must be a string", name)
        return value
