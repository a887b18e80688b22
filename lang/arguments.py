"""Arguments of the language's own functions and of programs: wrong names get a helpful error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from stolon.lang.location import located

P = ParamSpec("P")
R = TypeVar("R")


def unexpected(
    caller: str, name: str, known: Iterable[str], *, takes: str | None = None
) -> TypeError:
    """The error for an argument that `caller` does not have. `known` are names it may mean."""
    from difflib import get_close_matches

    text = f"{caller}() got an unexpected argument {name!r}"
    if takes is not None:
        text += f"; it takes {takes}"
    close = get_close_matches(name, sorted(known), n=1)
    if close:
        text += f"; did you mean {close[0]!r}?"
    return TypeError(text)


def word(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of the words of the language: their errors name the program line.

    Raises TypeError for an argument it does not have, naming the closest that it has.
    """
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters and not takes_any:
                raise unexpected(function.__name__, name, parameters)
        with located:
            return function(*args, **kwargs)

    return checked


def described(signature: inspect.Signature) -> str:
    """The parameters after the first as text that is the same in every process."""
    marks: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.KEYWORD_ONLY: "*, ",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    parts = []
    for parameter in list(signature.parameters.values())[1:]:
        mark = marks.get(parameter.kind, "")
        value = parameter.default
        default = ""
        if value is not parameter.empty:
            data = value is None or isinstance(value, bool | int | float | str)
            default = f"={value!r}" if data else "=..."
        parts.append(f"{mark}{parameter.name}{default}")
    return ", ".join(parts)
