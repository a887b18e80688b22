"""Keys of services: given, or in a variable of the environment, or missing before anything is sent."""

from __future__ import annotations

import os

from stolon.errors import InvalidRequest
from stolon.lang.backends.http_options import HTTPOptions, checked_key

_HEADERS = frozenset({"authorization", "api-key", "x-api-key"})


def service_key(
    service: str, variable: str | None, given: str | None, options: HTTPOptions
) -> str | None:
    """The key for a service that serves nobody without one; None where the headers have it.

    Raises InvalidRequest if there is none, or one that can't be sent.
    """
    key = options.api_key if given is None else given
    if key is None and variable:
        key = os.environ.get(variable) or None
    if key is not None:
        return checked_key(key)
    if not _HEADERS & {name.lower() for name in options.headers}:
        where = f"set the variable {variable}, or give api_key" if variable else "give api_key"
        raise InvalidRequest(f"{service} needs a key", param="api_key", hint=where)
    return None
