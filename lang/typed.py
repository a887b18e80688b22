"""Types of generated values: the grammar that keeps text in the type, and its decoder."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.location import placed, program_line
from stolon.srt.protocol import GrammarSpec


@dataclass(frozen=True, slots=True)
class Decoder:
    """Text to value. `parse` raises ValueError for text outside the type."""

    label: str
    parse: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class DataType:
    """A `dtype`: the pattern of its text, stop strings that end it, and its decoder."""

    pattern: str
    stop: tuple[str, ...]
    decode: Decoder

    @property
    def grammar(self) -> GrammarSpec:
        return GrammarSpec(kind="regex", text=self.pattern)


# A number ends where something follows it that can't belong to it; the trailing blanks in the
# pattern let the model say so, and the stop strings keep them out of the text.
_BLANK = (" ", "\n")

_TYPES: dict[str, DataType] = {
    "int": DataType(r"[-+]?[0-9]+[ \n]*", _BLANK, Decoder("int", int)),
    "float": DataType(r"[-+]?[0-9]*\.?[0-9]+[ \n]*", _BLANK, Decoder("float", float)),
    "bool": DataType(r"(True|False)", (), Decoder("bool", lambda text: _parse_bool(text))),
    "str": DataType(
        r'"([^"\\\x00-\x1f\x7f]|\\["\\/bfnrt])*"', (), Decoder("str", lambda text: _parse_str(text))
    ),
}


def data_type(dtype: type | str) -> DataType:
    """The DataType of ``int``, ``float``, ``bool`` or ``str``, given as the type or its name."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    known = name in _TYPES and (isinstance(dtype, str) or dtype in (int, float, bool, str))
    if not known:
        raise InvalidRequest(
            f"dtype must be int, float, bool or str, not {dtype!r}",
            param="dtype",
            hint="use schema= for models, dataclasses and containers",
        )
    return _TYPES[name]


def schema_type(schema: Any, *, param: str) -> tuple[GrammarSpec, Decoder]:
    """Grammar and decoder of a JSON schema.

    `schema` is a schema as a dict or as JSON text (values are plain JSON data), or a type: a pydantic
    model, a dataclass, a TypedDict, an Enum, a Literal, int, float, bool, str, list, dict, tuple, Optional
    and Union, nested as you like (values are what the type says).
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema, object_pairs_hook=_members)
        except ValueError as error:
            raise InvalidRequest(f"{param} is not valid JSON: {error}", param=param) from None
    if isinstance(schema, dict | bool):
        return _grammar(schema, param), Decoder("JSON", json.loads)
    if isinstance(schema, bytes | bytearray):
        raise InvalidRequest(f"{param} is bytes, not text", param=param, hint="decode it")
    try:
        hash(schema)
    except TypeError:
        return _python_type(schema, param)
    # Unions are equal whatever their order; what is generated follows it.
    return _cached_type(schema, repr(schema), param)


def _python_type(kind: Any, param: str) -> tuple[GrammarSpec, Decoder]:
    # pydantic takes longer to import than the rest of the language; only programs with typed
    # schemas pay.
    from pydantic import TypeAdapter

    from stolon.lang.exact_schema import ExactSchema
    from stolon.lang.not_exact import NotExact
    from stolon.lang.readable_types import readable
    from stolon.lang.type_places import place_of

    label = getattr(kind, "__name__", None) or str(kind)
    hint = "give a type, such as a pydantic model or list[int], a schema as a dict, or JSON text"
    if inspect.isroutine(kind):
        raise InvalidRequest(f"{param} is a function: {label}", param=param, hint=hint)
    adapter: TypeAdapter[Any] | None = None
    try:
        adapter = TypeAdapter(readable(kind))
        schema = adapter.json_schema(schema_generator=ExactSchema)
    except NotExact as error:
        place = None if adapter is None else place_of(kind, adapter.core_schema, error.parts)
        raise InvalidRequest(
            f"{param}: {place or label} is {error.what}, which no JSON schema pins down",
            param=param,
            where=placed(program_line(), f"{label}{place.path}") if place and place.path else None,
            hint=error.hint,
        ) from error.__cause__
    except Exception as error:  # also what the type's own hooks raise
        raise InvalidRequest(
            f"{param}: {label} can't be described as a JSON schema: {getattr(error, 'message', error)}",
            param=param,
            hint=hint,
        ) from error
    return _grammar(_closed(schema), param), Decoder(label, adapter.validate_json)


@lru_cache(maxsize=256)
def _cached_type(kind: Any, spelled: str, param: str) -> tuple[GrammarSpec, Decoder]:
    """`_python_type`, made once for every type: a program asks for it in each of its runs."""
    return _python_type(kind, param)


def choice_values(choices: Iterable[Any]) -> tuple[tuple[str, ...], Decoder | None]:
    """Texts of the choices of a selection, and the decoder to their values where some have one.

    A choice is a text, or a pair of a text and the value that it stands for.
    """
    texts: list[str] = []
    values: list[Any] = []
    for choice in choices:
        pair = choice if isinstance(choice, tuple | list) else (choice, choice)
        if len(pair) != 2 or not isinstance(pair[0], str) or not pair[0]:
            raise InvalidRequest(
                f"a choice must be a non-empty string, or a pair (text, value), not {choice!r}",
                param="choices",
            )
        texts.append(pair[0])
        values.append(pair[1])
    if all(text is value for text, value in zip(texts, values, strict=True)):
        return tuple(texts), None
    table = dict(zip(texts, values, strict=True))
    return tuple(texts), Decoder("choice", table.__getitem__)


def reason(error: Exception) -> str:
    """What a decoder found wrong first, and in a value with parts where."""
    from pydantic_core import ValidationError

    if not isinstance(error, ValidationError):
        return str(error) or type(error).__name__
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{first['msg']}, at {place}" if place else first["msg"]


_DATA = frozenset({"default", "examples", "const", "enum"})


def _closed(schema: Any) -> Any:
    """A schema made from Python types, with objects closed to keys that the types do not name.

    pydantic ignores such keys when it reads JSON, so its schemas allow them; a model that generates
    them writes for nobody, and may never stop. ``extra="allow"`` says `additionalProperties` and stays.
    """
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: value if key in _DATA else _closed(value) for key, value in schema.items()}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object")
    return members


def _grammar(schema: dict[str, Any] | bool, param: str) -> GrammarSpec:
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{param} can't be written as JSON: {error}", param=param) from None
    return GrammarSpec(kind="json_schema", text=text)


def _parse_bool(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(f"neither True nor False: {text!r}")
    return text == "True"


def _parse_str(text: str) -> str:
    value = json.loads(text)
    if not isinstance(value, str):
        raise ValueError(f"not a quoted string: {text!r}")
    return value
