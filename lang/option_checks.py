"""Checks of the arguments of runs and generations: types, and shorthand forms brought into shape."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from operator import index
from typing import Any, NoReturn, SupportsIndex

from stolon.errors import InvalidRequest


def checked_flag(name: str, value: Any) -> bool:
    """The argument `name` of a run, which must be a bool."""
    if not isinstance(value, bool):
        wrong_type(name, value, "True or False")
    return value


def checked_seed(seed: Any) -> int | None:
    """The argument `seed` of a run: a whole number, as of NumPy too, or None to draw one."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, SupportsIndex):
        wrong_type("seed", seed, "an integer")
    number = index(seed)
    if not 0 <= number < 2**63:
        raise InvalidRequest(f"seed must be between 0 and 2**63 - 1, not {number}", param="seed")
    return number


def require(name: str, value: Any, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise InvalidRequest unless a value is of a kind; True and False are no numbers."""
    if isinstance(value, bool) or not isinstance(value, kind):
        wrong_type(name, value, wanted)


def wrong_type(name: str, value: Any, wanted: str) -> NoReturn:
    """Raise the InvalidRequest that names an argument and what it must be."""
    raise InvalidRequest(f"{name} must be {wanted}, not {value!r}", param=name)


def sequence_of(name: str, value: Any, kind: type, wanted: str) -> tuple[Any, ...]:
    """One value or several as a tuple of values of a kind."""
    items = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    if any(isinstance(item, bool) or not isinstance(item, kind) for item in items):
        wrong_type(name, value, wanted)
    return tuple(items)


def checked_template(value: Any) -> Any:
    """The argument `chat_template` of a run: a template, or the name of a registered one."""
    from stolon.lang.chat_template import get_chat_template

    if isinstance(value, str):
        return get_chat_template(value)
    if not hasattr(value, "role_affixes"):
        wrong_type("chat_template", value, "a ChatTemplate, or the name of a registered one")
    return value


def checked_bias(value: Any) -> dict[int, float]:
    """The argument `logit_bias`. Its keys may be spelled as in JSON, and numbers be NumPy's."""
    if not isinstance(value, Mapping):
        wrong_type("logit_bias", value, "a mapping of token ids to numbers")
    bias = {}
    for token, number in value.items():
        if isinstance(token, str) and token.isascii() and token.isdigit():
            token = int(token)  # as JSON spells it
        if isinstance(token, bool) or not isinstance(token, SupportsIndex):
            wrong_type("logit_bias", value, "a mapping of token ids to numbers")
        if isinstance(number, bool) or not isinstance(number, Real):
            wrong_type("logit_bias", value, "a mapping of token ids to numbers")
        bias[index(token)] = float(number)
    return bias
