"""What a program appends: immutable expressions that concatenate with ``+``.

An expression knows nothing of a model or a run. Values that depend on them (defaults, seeds, chat
templates) are filled in when a state records the expression.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from stolon.errors import InvalidRequest
from stolon.lang.options import SamplingOptions
from stolon.lang.typed import Decoder
from stolon.srt.protocol import GrammarSpec, SelectMethod

Role = Literal["system", "user", "assistant"]


class Expr:
    """Base of everything that can stand on the right of ``s += ...``."""

    __slots__ = ()

    def __add__(self, other: Any) -> ExprList:
        return ExprList(_parts(self) + _parts(as_expr(other)))

    def __radd__(self, other: Any) -> ExprList:
        return ExprList(_parts(as_expr(other)) + _parts(self))


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
    """A selection among fixed strings."""

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    """The beginning of a chat message."""

    role: Role


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    """The end of a chat message."""

    role: Role


def as_expr(value: Any) -> Expr:
    """What a program appends, as an expression: strings, expressions, lists, else ``str()``."""
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
        raise InvalidRequest("a coroutine can't be appended to a state", hint="await it first")
    if callable(value):
        raise InvalidRequest(
            f"{value!r} can't be appended to a state",
            hint="call another program with the state as its first argument: name(s, ...)",
        )
    return TextExpr(str(value))


def _parts(expr: Expr) -> tuple[Expr, ...]:
    return expr.parts if isinstance(expr, ExprList) else (expr,)
