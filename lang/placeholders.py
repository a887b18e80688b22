"""What stands for values that a program gets only when it runs, while it is traced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from stolon.lang.ir import Expr

# Methods of a text that give a text: of a placeholder they give another one.
_TEXT_METHODS = frozenset(
    [
        "capitalize",
        "casefold",
        "lower",
        "lstrip",
        "replace",
        "rstrip",
        "strip",
        "swapcase",
        "title",
        "upper",
    ]
)


class Asked(Protocol):
    """Told when the program asks for something that tracing can't know."""

    def ask(self, placeholder: Placeholder, what: str) -> NoReturn: ...

    def spell(self, placeholder: Placeholder) -> str: ...

    def represent(self, placeholder: Placeholder) -> str: ...


class Placeholder(Expr):
    """A value of later. It can be appended, indexed, made part of a text, and passed on; what needs the
    value itself ends the trace: numbers, truth, comparisons, iteration.

    ``is`` and ``isinstance`` see a placeholder, not the value, and a text that it is part of is not its
    real text: a program that decides by them is traced along one of its ways.
    """

    __slots__ = ("_asked", "_called", "_label")

    def __init__(self, asked: Asked, label: str, *, called: bool = False) -> None:
        self._asked = asked
        self._label = label
        self._called = called  # a method of a text

    def _derived(self, label: str, *, called: bool = False) -> Placeholder:
        return type(self)(self._asked, label, called=called)

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._derived(f"{self._label}.{name}", called=name in _TEXT_METHODS)

    def __getitem__(self, key: Any) -> Placeholder:
        return self._derived(f"{self._label}[{key!r}]")

    def __call__(self, *args: Any, **kwargs: Any) -> Placeholder:
        if self._called and not kwargs:
            return self._derived(f"{self._label}({', '.join(map(repr, args))})")
        return self._asked.ask(self, "is called")

    def __str__(self) -> str:  # type: ignore[override]
        return self._asked.spell(self)

    def __format__(self, spec: str) -> str:  # type: ignore[override]
        return self._asked.spell(self)

    def __bool__(self) -> bool:
        self._asked.ask(self, "decides what the program does")

    def __eq__(self, other: object) -> bool:
        self._asked.ask(self, "is compared")

    def __hash__(self) -> int:
        self._asked.ask(self, "is looked up")

    def __lt__(self, other: object) -> bool:
        self._asked.ask(self, "is compared")

    __le__ = __gt__ = __ge__ = __lt__

    def __contains__(self, item: object) -> bool:
        self._asked.ask(self, "is searched")

    def __iter__(self) -> Iterator[Any]:
        self._asked.ask(self, "is iterated over")

    def __len__(self) -> int:
        self._asked.ask(self, "is measured by len()")

    def __int__(self) -> int:
        self._asked.ask(self, "is made a number")

    def __float__(self) -> float:
        self._asked.ask(self, "is made a number")

    def __index__(self) -> int:
        self._asked.ask(self, "is used as a number")

    def __repr__(self) -> str:
        return self._asked.represent(self)


class Argument(Placeholder):
    """An argument of the program."""

    __slots__ = ()


class Variable(Placeholder):
    """What the program will have generated."""

    __slots__ = ()
