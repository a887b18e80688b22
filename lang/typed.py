"""Types of generated values: the grammar that keeps text in the type, and its decoder."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stolon.errors import InvalidRequest
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

    `schema` is a schema as a dict or as JSON text (values are plain JSON data), or a pydantic
    model, a dataclass or any other type that pydantic can describe (values are instances of it).
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InvalidRequest(f"{param} is not valid JSON: {error}", param=param) from None
    if isinstance(schema, dict | bool):
        return _grammar(schema, param), Decoder("JSON", json.loads)
    return _python_type(schema, param)


def _python_type(kind: Any, param: str) -> tuple[GrammarSpec, Decoder]:
    # pydantic takes longer to import than the rest of the language; only programs with typed
    # schemas pay.
    from pydantic import PydanticUserError, TypeAdapter

    if not (inspect.isclass(kind) or hasattr(kind, "__origin__") or hasattr(kind, "__args__")):
        raise InvalidRequest(
            f"{param} must be a dict, JSON text, a pydantic model or a dataclass, not {kind!r}",
            param=param,
        )
    label = getattr(kind, "__name__", None) or str(kind)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema = adapter.json_schema()
    except PydanticUserError as error:
        raise InvalidRequest(
            f"{param}: pydantic can't describe {label} as a JSON schema: {error.message}",
            param=param,
        ) from None
    return _grammar(_closed(schema), param), Decoder(label, adapter.validate_json)


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
