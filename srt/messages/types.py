"""Whether a message built in Python holds what its fields say, as one that was decoded does."""

from __future__ import annotations

import re
from decimal import Decimal
from uuid import UUID

import msgspec

from stolon.errors import InvalidRequest

# Values of these types are no text, though msgspec writes them as text.
_NO_TEXT = (bytes, bytearray, UUID, Decimal)


def check_types(message: msgspec.Struct) -> None:
    """Raise InvalidRequest that names the first field of a wrong type, as one built in Python may have."""
    try:
        plain = msgspec.to_builtins(message, builtin_types=_NO_TEXT)
        msgspec.convert(plain, type(message), builtin_types=_NO_TEXT)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from error
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        fields = message.__struct_fields__
        odd = [name for name in fields if not _is_plain(getattr(message, name))]
        name = odd[0] if odd else type(message).__name__
        raise InvalidRequest(f"{name} can't be read: {error}", param=name) from error


def _is_plain(value: object) -> bool:
    """Whether a value consists of what JSON has."""
    try:
        msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError, RecursionError):
        return False
    except OverflowError:  # a number, however large
        pass
    return True


def _wrong_type(message: str) -> InvalidRequest:
    """What msgspec says about a value of a wrong type, with the field in front."""
    found = re.search(r"\$\.((\w+)[\w.]*)", message)
    if found is None:
        return InvalidRequest(message)
    path, field = found[1], found[2]
    types = re.match(r"Expected `(.+?)`, got `(.+?)`", message)
    if types is None:
        return InvalidRequest(f"{path}: {message.partition(' - at ')[0]}", param=field)
    return InvalidRequest(f"{path} must be {types[1]}, not {types[2]}", param=field)
