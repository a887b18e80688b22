"""Where in a type a part of it stands, and how the program wrote it."""

from __future__ import annotations

import sys
import types
import typing
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

# What of a schema of pydantic's describes no part of the value.
_ASIDE = frozenset(
    {
        "metadata",
        "serialization",
        "config",
        "definitions",
        "default",
        "expected",
        "members",
        "function",
    }
)


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a type.

    Attributes:
        schema: what pydantic's core makes of it.
        hint: its annotation, or the innermost one around it that is known.
        path: fields, items and values that lead to it: ``.items[].when``.
        inside: the innermost class around it.
        owner: the class of `field`.
        field: the field of `owner` that it is, or is in.
    """

    schema: Mapping[str, Any]
    hint: Any
    path: str = ""
    inside: Any = None
    owner: Any = None
    field: str | None = None

    def __str__(self) -> str:
        """The part as it was written, and its field: ``ByteSize (Other.size)``."""
        text = written(self.hint)
        return text if self.owner is None else f"{text} ({self.owner.__name__}.{self.field})"


def place_of(kind: Any, core: Mapping[str, Any], parts: Iterable[Mapping[str, Any]]) -> Place:
    """The first of some parts that is found in a type; the type itself if none is.

    Args:
        kind: the type.
        core: pydantic's core schema of it, which holds the parts themselves, not copies.
        parts: core schemas.
    """
    places = {id(place.schema): place for place in _places(Place(core, kind))}
    found = (places[id(part)] for part in parts if id(part) in places)
    return next(found, Place(core, kind))


def written(hint: Any) -> str:
    """A type as a program writes it; of annotations, only those that have a name in pydantic."""
    if typing.get_origin(hint) is typing.Annotated:
        from pydantic import types as named

        names = (name for name in named.__all__ if getattr(named, name, None) == hint)
        return next(names, None) or written(typing.get_args(hint)[0])
    if not isinstance(hint, type) or typing.get_args(hint):
        return str(hint).replace("typing.", "")
    module = hint.__module__
    known = module != "builtins" and module.partition(".")[0] in sys.stdlib_module_names
    return f"{module}.{hint.__qualname__}" if known else hint.__qualname__


def _places(root: Place) -> Iterator[Place]:
    """Every part of a type once, those on short paths first."""
    definitions = {part["ref"]: part for part in root.schema.get("definitions", ())}
    waiting, seen = deque([root]), set()
    while waiting:
        place = waiting.popleft()
        if id(place.schema) in seen:
            continue
        seen.add(id(place.schema))
        yield place
        if place.schema.get("type") == "definition-ref":
            target = definitions.get(place.schema["schema_ref"])
            waiting.extend([] if target is None else [replace(place, schema=target)])
        place = replace(place, inside=_class_of(place.schema) or place.inside)
        waiting.extend(_step(place, *part) for part in _parts(place.schema))


def _class_of(schema: Mapping[str, Any]) -> Any:
    called = schema.get("function")  # with fields, a NamedTuple's in older versions of pydantic
    return schema.get("cls", called if isinstance(called, type) else None)


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Schemas inside of one, with the key that holds them, and the name or number of one of several."""
    for key, value in schema.items():
        if key in _ASIDE:
            continue
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            yield key, None, value
        elif isinstance(value, dict | list):
            several = value.items() if isinstance(value, dict) else enumerate(value)
            for index, item in several:
                part = item[0] if isinstance(item, tuple) else item  # of a union: with a label
                if isinstance(part, dict):
                    yield key, index, part


def _step(place: Place, key: str, index: Any, part: Mapping[str, Any]) -> Place:
    name = index if isinstance(index, str) else part.get("name")
    if key in ("fields", "arguments_schema") and isinstance(name, str):
        hint = _hints(place.inside).get(name, "a field")
        return Place(part, hint, f"{place.path}.{name}", place.inside, place.inside, name)
    inner = replace(place, schema=part)
    arguments = _arguments(place.hint)
    if key == "items_schema":
        at = index if index is not None and index != place.schema.get("variadic_item_index") else ""
        return replace(
            inner, path=f"{place.path}[{at}]", hint=_at(arguments, index or 0, place.hint)
        )
    if key == "keys_schema":
        return replace(inner, path=f"{place.path}.keys()", hint=_at(arguments, 0, place.hint))
    if key == "values_schema":
        return replace(inner, path=f"{place.path}[]", hint=_at(arguments, -1, place.hint))
    if typing.get_origin(_plain(place.hint)) in (typing.Union, types.UnionType):
        others = [argument for argument in arguments if argument is not types.NoneType]
        if key == "choices" and isinstance(index, int):
            return replace(inner, hint=_at(others, index, place.hint))
        if len(others) == 1:
            return replace(inner, hint=others[0])
    return inner


def _at(arguments: list[Any], index: int, otherwise: Any) -> Any:
    return arguments[index] if -1 <= index < len(arguments) and arguments else otherwise


def _arguments(hint: Any) -> list[Any]:
    return list(typing.get_args(_plain(hint)))


def _plain(hint: Any) -> Any:
    """A type without what is said about it, and without a name that a program gave it."""
    while True:
        if typing.get_origin(hint) in (typing.Annotated, typing.Required, typing.NotRequired):
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint


def _hints(owner: Any) -> dict[str, Any]:
    """Annotations of the fields of a class."""
    if hasattr(owner, "model_fields"):
        return {
            name: typing.Annotated[(field.annotation, *field.metadata)]
            if field.metadata
            else field.annotation
            for name, field in owner.model_fields.items()
        }
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except Exception:  # a name that is known only where the class was made; its fields have theirs
        return {}
