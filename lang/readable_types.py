"""Types in the form that pydantic reads.

It takes a `typing.TypedDict` before Python 3.12 only from `typing_extensions`, and finds the members of an
Enum in a Literal not by what JSON has in their place.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
import types
import typing
from typing import Any

from stolon.lang.not_exact import NotExact

_NATIVE = sys.version_info >= (3, 12)


def readable(kind: Any) -> Any:
    """The type with what pydantic would not read replaced.

    It is found in TypedDicts and in the arguments of containers and unions; not in the fields of models and
    dataclasses, which pydantic reads by itself.

    Raises:
        NotExact: for a TypeVar, which is no type yet.
    """
    return _readable(kind, {})


def _readable(kind: Any, made: dict[Any, Any]) -> Any:
    if isinstance(kind, typing.TypeVar):
        raise NotExact(f"the type variable {kind}", "put a type in its place")
    if typing.is_typeddict(kind):
        return _typed_dict(kind, made)
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return _literal(kind, [a for a in arguments if isinstance(a, enum.Enum)])
    if not arguments:
        return kind
    new = tuple(_readable(argument, made) for argument in arguments)
    if all(a is b for a, b in zip(arguments, new, strict=True)):
        return kind
    if origin is types.UnionType:
        return functools.reduce(operator.or_, new)
    if origin is typing.Annotated:
        return typing.Annotated[new]
    return kind.copy_with(new) if hasattr(kind, "copy_with") else origin[new]


def _literal(kind: Any, members: list[enum.Enum]) -> Any:
    if not members:
        return kind
    from pydantic import BeforeValidator

    def member(value: Any) -> Any:
        return next((found for found in members if found.value == value), value)

    return typing.Annotated[kind, BeforeValidator(member)]


def _typed_dict(kind: Any, made: dict[Any, Any]) -> Any:
    from typing_extensions import TypedDict, get_type_hints

    if _NATIVE or type(kind).__module__ != "typing":
        return kind
    if kind not in made:
        made[kind] = kind  # what refers to itself ends here, and pydantic says so
        hints = get_type_hints(kind, include_extras=True)
        fields = {name: _field(kind, name, _readable(hint, made)) for name, hint in hints.items()}
        new = made[kind] = TypedDict(kind.__name__, fields)  # type: ignore[operator]
        if hasattr(kind, "__pydantic_config__"):
            new.__pydantic_config__ = kind.__pydantic_config__
    return made[kind]


def _field(kind: Any, name: str, hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        return hint
    return typing.Required[hint] if name in kind.__required_keys__ else typing.NotRequired[hint]
