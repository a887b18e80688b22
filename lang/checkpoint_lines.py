"""The lines of a checkpoint: which batch it is, and how each item ended."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import msgspec

from stolon.errors import InvalidRequest, StolonError
from stolon.lang.restored import SavedState

FORMAT = 1


class Identity(msgspec.Struct, kw_only=True):
    """What a batch is, but for its items: two that differ in this share no file.

    Attributes:
        program: name.
        signature: the parameters' names and kinds.
        model: name of what is served.
        sampling: arguments of the run that are given.
    """

    program: str
    signature: str
    model: str
    sampling: dict[str, Any]


class Header(Identity, kw_only=True):
    """The first line of a file."""

    stolon_batch: int = FORMAT
    seed: int


class Fault(msgspec.Struct, kw_only=True):
    """An item's error, for readers; the item is run again."""

    type: str
    message: str
    code: str | None = None
    where: str | None = None


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How an item ended: its state or its error. `digest` tells it from others of the same index."""

    item: int
    digest: str
    state: SavedState | None = None
    error: Fault | None = None


class Key(msgspec.Struct):
    """A line, read as far as it must be to find it again."""

    item: int
    digest: str
    state: msgspec.Raw = msgspec.Raw()


def digest(seed: int, arguments: Any) -> str:
    """Of an item: its seed and arguments.

    Raises InvalidRequest for arguments that are no data: whether they are the same when the batch is
    resumed could not be told.
    """
    try:
        text = msgspec.json.encode((seed, arguments), enc_hook=_as_data, order="deterministic")
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidRequest(
            f"a checkpoint needs items that are data: {error}",
            param="checkpoint",
            hint="use text, numbers, lists, dicts, dataclasses or pydantic models; bind() the rest",
        ) from None
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _as_data(value: Any) -> Any:
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a {type(value).__qualname__} is not")


def fault_of(error: BaseException) -> Fault:
    """The error as it is written."""
    fault = Fault(type=type(error).__qualname__, message=_clean(str(error)))
    if isinstance(error, StolonError):
        fault.code, fault.message, fault.where = error.code, _clean(error.message), error.where
    return fault


def _clean(text: str) -> str:
    """Text that can be written as UTF-8, whatever was in the message."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
