"""`connect`: a server by its address, whatever it speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from stolon.errors import AccessDenied, BackendUnavailable, InvalidRequest, StolonError
from stolon.lang.runtime_loop import refuse_on_loop, runtime_loop
from stolon.srt.client import EngineClient

if TYPE_CHECKING:
    from stolon.lang.backends.http import HTTPOptions

STOLON_SILENCE = 60.0  # seconds; a server of ours says something every 15
OTHERS_SILENCE = 600.0  # others are silent until a whole answer is there


class Backend(EngineClient, Protocol):
    """An engine that closes at the end of a ``with``."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def connect(
    url: str,
    *,
    dialect: str = "auto",
    model: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    verify: bool | str | None = None,
    connect_timeout: float = 10.0,
    read_timeout: float | None = None,
    max_connections: int = 512,
    retries: int = 4,
) -> Backend:
    """A backend for programs: ``fn.run(..., backend=connect("http://host:8000"))``. Times in seconds.

    Args:
        url: of the server, with or without ``/v1`` at its end.
        dialect: what the server speaks: ``stolon``, or a name from docs/backends.md. ``auto`` asks it.
        model: which of its models; not needed where there is one.
        api_key: sent as ``Authorization: Bearer``.
        headers: further headers of every request.
        verify: False accepts any TLS certificate; a path names a file of certificates to trust.
        connect_timeout: for a connection to come about.
        read_timeout: how long an answer may be silent; by default 60 for a Stolon server, 600 for others.
        max_connections: requests under way at the same time; others wait for their turn.
        retries: how often a request is sent again when the server was busy or out of reach and nothing of
            its answer had come. One that has never accepted a connection is given a second.

    Raises BackendUnavailable if nobody answers, AccessDenied for a wrong key, InvalidRequest for an
    address or a dialect that is none.
    """
    # An HTTP client takes a tenth of a second to import: not for programs on the embedded engine.
    from stolon.lang.backends.dialects import dialect as named_dialect
    from stolon.lang.backends.dialects_detect import known_host
    from stolon.lang.backends.http import HTTPOptions, Retries
    from stolon.lang.backends.http_options import checked_address

    refuse_on_loop("connect()")
    checked_address(url)
    if dialect not in ("auto", "stolon"):
        named_dialect(dialect)
    ours = HTTPOptions(
        api_key=api_key,
        headers={} if headers is None else headers,
        verify=verify,
        connect_timeout=connect_timeout,
        read_timeout=STOLON_SILENCE if read_timeout is None else read_timeout,
        max_connections=max_connections,
        retries=Retries(count=retries),
    )
    if dialect == "stolon" or (
        dialect == "auto" and known_host(url) is None and is_stolon(url, ours)
    ):
        return _stolon(url, model, ours)
    theirs = replace(ours, read_timeout=OTHERS_SILENCE if read_timeout is None else read_timeout)
    named = known_host(url) if dialect == "auto" else dialect
    if named == "anthropic":
        from stolon.lang.backends.anthropic import Anthropic

        if model is None:
            raise InvalidRequest("name one of Anthropic's models", param="model")
        return Anthropic(model, base_url=url, options=theirs)
    from stolon.lang.backends.openai import OpenAI

    return OpenAI(model, base_url=url, dialect=named, options=theirs)


def is_stolon(url: str, options: HTTPOptions) -> bool:
    """Whether a Stolon server answers there. Raises BackendUnavailable if nobody does."""
    from stolon.lang.backends.http import HTTPClient

    http = HTTPClient(root_of(url), options)

    async def ask() -> bool:
        try:
            await http.json("GET", "/blocks/info", kind=_Info, limit=4 << 20)
        except BackendUnavailable:
            raise
        except AccessDenied as error:
            error.hint = "give the right api_key, or the dialect of a server that is not Stolon's"
            raise
        except StolonError:
            return False
        finally:
            await http.aclose()
        return True

    return runtime_loop().submit(ask()).result()


def root_of(url: str) -> str:
    """The address without ``/v1``: programs have routes of their own."""
    return url.rstrip("/").removesuffix("/v1")


def _stolon(url: str, model: str | None, options: HTTPOptions) -> Backend:
    from stolon.lang.backends.stolon_server import RemoteEngine

    engine = RemoteEngine(root_of(url), options)
    if model not in (None, engine.info.name):
        engine.close()
        raise InvalidRequest(
            f"{engine.url} serves {engine.info.name!r}, not {model!r}", param="model"
        )
    return engine


class _Info(msgspec.Struct):
    """What only a Stolon server says."""

    blocks_version: int
