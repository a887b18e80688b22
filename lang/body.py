"""A program's body: what it takes, which of that is bound, and what a call gives."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from stolon.errors import InvalidRequest
from stolon.lang.arguments import unexpected
from stolon.lang.location import program_line

if TYPE_CHECKING:
    from stolon.lang.state import ProgramState

Body = Callable[..., Any]

RESERVED = ("backend", "seed", "stream")
"""Arguments of `Function.run` that a body can't have as its own."""


class BoundBody:
    """A body with some of its arguments bound.

    Attributes:
        body: the function.
        name: of the program, as errors say it.
        is_async: the body is an ``async def``.
        signature: of the body, ``s`` included.
        parameters: names of those after ``s``.
        bound: arguments that are fixed.
    """

    def __init__(self, body: Body, bound: Mapping[str, Any] | None = None) -> None:
        """Raises InvalidRequest, with the place of the body, for one that can't be a program."""
        self.body = body
        self.name: str = getattr(body, "__qualname__", repr(body)).rpartition("<locals>.")[2]
        self.is_async = inspect.iscoroutinefunction(body)
        self.signature = inspect.signature(body)
        self.bound = dict(bound or {})
        self.parameters = _parameters(body, self.signature)

    def with_bound(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What is bound, and `arguments` besides."""
        for name in arguments:
            if name not in self.parameters and not self._takes_any:
                raise TypeError(
                    f"{self.name}() has no parameter {name!r} to bind; it takes {self.takes()}"
                )
            self._refuse_bound(name)
        return {**self.bound, **arguments}

    def takes(self) -> str:
        """The program's own arguments in words."""
        marks: dict[Any, str] = {
            inspect.Parameter.VAR_POSITIONAL: "*",
            inspect.Parameter.VAR_KEYWORD: "**",
        }
        own = [p for p in list(self.signature.parameters.values())[1:] if p.name not in self.bound]
        return ", ".join(marks.get(p.kind, "") + p.name for p in own) or "no arguments"

    def bind_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, also: Collection[str] = ()
    ) -> Callable[[ProgramState], Any]:
        """The body with its arguments, waiting for the state; raises TypeError as a call would.

        `also` are names beside the program's own that a misspelt one may mean.
        """
        for name in kwargs:
            if name not in self.parameters and not self._takes_any:
                known = {*self.parameters, *also} - set(self.bound)
                raise unexpected(self.name, name, known, takes=self.takes())
        keywords = self.bound | kwargs

        def call(state: ProgramState) -> Any:
            result = self.body(state, *args, **keywords)
            if inspect.iscoroutine(result) and not self.is_async:
                result.close()
                raise InvalidRequest(
                    f"the body of {self.name!r} returns a coroutine, which nothing would run",
                    where=_place(self.body),
                    hint="make it 'async def', and await there",
                )
            return result

        try:
            given = self.signature.bind_partial(None, *args, **kwargs).arguments
            for name in (*given, *kwargs):
                self._refuse_bound(name)
            self.signature.bind(None, *args, **keywords)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}; it takes {self.takes()}") from None
        return call

    @property
    def _takes_any(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values())

    def _refuse_bound(self, name: str) -> None:
        if name in self.bound:
            raise InvalidRequest(
                f"{self.name}: argument {name!r} is bound already", param=name, where=program_line()
            )


def _place(body: Body) -> str | None:
    """``file.py:line`` where a body is defined, if that is known."""
    code = getattr(body, "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else None


def _parameters(body: Body, signature: inspect.Signature) -> frozenset[str]:
    """Names of the parameters after ``s``."""
    names = list(signature.parameters)
    where = _place(body)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidRequest(
            "a program can't be a generator: nothing would run its body",
            where=where,
            hint="return a list; run(stream=True) and text_iter() give the text as it arrives",
        )
    if not names or names[0] != "s":
        raise InvalidRequest(
            f"the first parameter of a program must be named s, not {names[0]!r}"
            if names
            else "a program needs a first parameter named s",
            where=where,
        )
    for name in RESERVED:
        if name in names:
            raise InvalidRequest(
                f"a program can't have a parameter {name!r}: it is an argument of run()",
                where=where,
            )
    return frozenset(names[1:])
