"""JSON text from outside, parsed with limits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from stolon.errors import GrammarError

__all__ = ["MAX_DEPTH", "parse_json", "pointer"]

MAX_DEPTH = 64


def parse_json(text: str) -> Any:
    """Parse strict JSON.

    Raises:
        GrammarError: for what is no JSON, and for what parsers read differently: duplicate keys,
            NaN, numbers beyond a double, lone surrogates, nesting deeper than 64.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise GrammarError(f"not JSON: {error.msg}", where=f"offset {error.pos}") from None
    except RecursionError:
        raise GrammarError(f"JSON is nested deeper than {MAX_DEPTH}") from None
    except _OutOfRange as error:
        raise GrammarError(error.message, where=_place_of_refused(text)) from None
    if "\\u" in text or not _is_encodable(text) or not _is_shallow(value):
        _check(value)  # says where
    return value


def pointer(path: tuple[str | int, ...]) -> str:
    """A JSON pointer (RFC 6901); the root is ``/`` so that it can be seen in a message."""
    return "/" + "/".join(str(p).replace("~", "~0").replace("/", "~1") for p in path)


def _is_shallow(root: Any) -> bool:
    level = [root] if type(root) in (dict, list) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for value in level
            for child in (value.values() if type(value) is dict else value)
            if type(child) in (dict, list)
        ]
        if not level:
            return True
    return False


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(root: Any) -> None:
    """Depth and encodability, without recursion."""
    todo: list[tuple[Any, tuple[str | int, ...]]] = [(root, ())]
    while todo:
        value, path = todo.pop()
        if len(path) > MAX_DEPTH:
            raise GrammarError(f"JSON is nested deeper than {MAX_DEPTH}", where=pointer(path[:8]))
        if isinstance(value, str):
            _encodable(value, path)
        elif isinstance(value, list):
            todo.extend((item, (*path, i)) for i, item in enumerate(value))
        elif isinstance(value, dict):
            for key, item in value.items():
                _encodable(key, path)
                todo.append((item, (*path, key)))


def _encodable(text: str, path: tuple[str | int, ...]) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError("a string holds half of a surrogate pair", where=pointer(path)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise GrammarError(f"the key {key!r} occurs twice in one JSON object")
            seen.add(key)
    return result


class _OutOfRange(GrammarError):
    """A number that is not read."""


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _OutOfRange(f"the number {text[:40]} is out of range")
    return value


def _int(text: str) -> int:
    if len(text) > 40:
        raise _OutOfRange(f"the number {text[:40]}… has too many digits")
    return int(text)


def _place_of_refused(text: str) -> str | None:
    """Where the first number is that is not read, of a text that may have other faults behind it."""
    try:
        root = json.loads(text, parse_float=_refused(_float), parse_int=_refused(_int))
    except (ValueError, RecursionError):
        return None
    todo: list[tuple[Any, tuple[str | int, ...]]] = [(root, ())]
    while todo:
        value, path = todo.pop()
        if value is _REFUSED:
            return pointer(path)
        if len(path) > MAX_DEPTH:
            return None
        if isinstance(value, list):
            todo.extend((item, (*path, i)) for i, item in reversed([*enumerate(value)]))
        elif isinstance(value, dict):
            todo.extend((item, (*path, key)) for key, item in reversed(value.items()))
    return None


def _refused(read: Callable[[str], object]) -> Callable[[str], object]:
    def mark(text: str) -> object:
        try:
            return read(text)
        except _OutOfRange:
            return _REFUSED

    return mark


_REFUSED = object()


def _constant(text: str) -> float:
    raise GrammarError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_int=_int, parse_constant=_constant
)
