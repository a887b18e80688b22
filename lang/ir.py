"""What a program appends: immutable expressions that concatenate with ``+``.

An expression knows nothing of a model or a run. Values that depend on them (defaults, seeds, chat
templates) are filled in when a state records the expression.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from stolon.errors import InvalidRequest
from stolon.lang.location import located, program_line
from stolon.lang.options import SamplingOptions
from stolon.lang.reasoning import Family
from stolon.lang.typed import Decoder
from stolon.srt.protocol import GrammarSpec, SelectMethod

Role = Literal["system", "user", "assistant"]


class Expr:
    """Base of everything that can stand on the right of ``s += ...``."""

    __slots__ = ()

    @located
    def __add__(self, other: Any) -> ExprList:
        return ExprList(_parts(self) + _parts(as_expr(other)))

    @located
    def __radd__(self, other: Any) -> ExprList:
        return ExprList(_parts(as_expr(other)) + _parts(self))

    # As text it would be its repr, and that would silently become part of the prompt.

    def __str__(self) -> NoReturn:
        raise InvalidRequest(
            "an expression can't be made text with str(), print() or an f-string: "
            "what it generates is not known yet",
            where=program_line(),
            hint='put it together with +, as in s += "a " + sl.gen("x"); repr() shows it',
        )

    def __format__(self, spec: str) -> NoReturn:
        self.__str__()

    # As a condition it would always be true.

    def __bool__(self) -> bool:
        raise InvalidRequest(
            "an expression is no condition: what it generates is not known yet",
            where=program_line(),
            hint='append it and read its variable, as in if s["x"] == "yes"',
        )


@dataclass(frozen=True, slots=True)
class TextExpr(Expr):
    """Literal text. It never spells special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class ExprList(Expr):
    """Expressions one after the other; never nested."""

    parts: tuple[Expr, ...]

    def __iter__(self) -> Iterator[Expr]:
        return iter(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenExpr(Expr):
    """A generation.

    Attributes:
        options: what this call sets; unset fields come from the run.
        extra_stop: stop strings that belong to the data type, on top of the others.
        decode: turns the text into the typed value of `ProgramState.value`.
    """

    name: str | None
    options: SamplingOptions
    grammar: GrammarSpec | None = None
    extra_stop: tuple[str, ...] = ()
    decode: Decoder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectExpr(Expr):
    """A selection among fixed strings; drawn where `temperature` is above 0.

    `decode` turns the chosen text into the value that it stands for.
    """

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod
    temperature: float = 0.0
    seed: int | None = None
    decode: Decoder | None = None


@dataclass(frozen=True, slots=True)
class ReasoningExpr(Expr):
    """A generation or selection whose reasoning is kept apart from its answer."""

    inner: GenExpr | SelectExpr
    family: Family


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    """The beginning of a chat message."""

    role: Role


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    """The end of a chat message."""

    role: Role


def as_expr(value: Any) -> Expr:
    """What a program appends, as an expression: strings, expressions, lists, else ``str()``.

    Raises InvalidRequest for what is no text: None, bytes, sets (they have no order), programs and their
    states, what must be awaited or iterated, and objects whose only text is their address. A class of the
    language that can't be appended says in ``_append_hint`` what to do instead.
    """
    if isinstance(value, str):
        return TextExpr(value)
    if isinstance(value, Expr):
        return value
    if isinstance(value, list | tuple):
        return ExprList(tuple(part for item in value for part in _parts(as_expr(item))))
    if value is None:
        raise InvalidRequest(
            "None can't be appended to a state",
            hint="was a function called that returns nothing?",
        )
    if inspect.iscoroutine(value):
        value.close()
    hint = _no_text(value)
    if hint is not None:
        raise InvalidRequest(f"{_described(value)} can't be appended to a state", hint=hint)
    return TextExpr(str(value))


def _no_text(value: Any) -> str | None:
    """What to do instead of appending a value that is no text; None if it is one."""
    kind: Any = type(value)
    own = getattr(kind, "_append_hint", None)
    if own is not None:
        return str(own(value))
    if inspect.isawaitable(value):
        return "await it first; inside an async program another one is: await name(s, ...)"
    if callable(value):
        return "call another program with the state as its first argument: name(s, ...)"
    if isinstance(value, bytes | bytearray | memoryview):
        return "decode it: its own text would be its spelling in Python, b'...'"
    if isinstance(value, set | frozenset):
        return "sort it, or make it a list: a set has no order"
    if isinstance(value, Iterator) or inspect.isasyncgen(value):
        return "append its values one by one, or as a list"
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return f"{kind.__name__} defines no __str__; append the text that you mean"
    return None


def _described(value: Any) -> str:
    if inspect.isawaitable(value):
        return f"a {type(value).__name__}"
    return repr(value)


def _parts(expr: Expr) -> tuple[Expr, ...]:
    return expr.parts if isinstance(expr, ExprList) else (expr,)
