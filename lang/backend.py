"""The engine that programs run on when they name none."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

import msgspec

from stolon.errors import InvalidRequest
from stolon.lang.location import located
from stolon.srt.client import EngineClient

_lock = threading.Lock()
_default: EngineClient | None = None
_started: EngineClient | None = None  # the embedded engine that no program asked for by name


@located
def set_default_backend(backend: EngineClient | str | None) -> None:
    """Set the engine of programs that name none; None goes back to the embedded engine.

    An address is connected to, as by `connect`. A `Runtime` stands for its `endpoint`.
    """
    global _default
    engine = backend_of(backend)
    with _lock:
        _default = engine


def given_backend() -> EngineClient | None:
    """What `set_default_backend` set, or the embedded engine if it was started, else None."""
    return _default


def default_backend() -> EngineClient:
    """The default engine. The first call starts the embedded one, closed when Python exits.

    In a fork of the process the first call starts another: an engine does not come along.
    """
    global _default, _started
    with _lock:
        if _default is None:
            from stolon.srt import Engine

            engine = Engine()
            atexit.register(engine.close)
            _default = _started = engine
        return _default


def _after_fork() -> None:
    """In the child of a fork. An engine that the program set stays, and says itself that it can't serve."""
    global _lock, _default
    _lock = threading.Lock()  # whoever held it is not here
    if _default is _started:
        _default = None


os.register_at_fork(after_in_child=_after_fork)


def backend_of(backend: EngineClient | str | None) -> EngineClient | None:
    """The engine that an argument `backend` means."""
    if isinstance(backend, str):
        from stolon.lang.backends.connecting import connect

        return connect(backend)
    return None if backend is None else _checked(backend)


def engine_of(backend: EngineClient | None) -> EngineClient:
    """The engine that a run's argument `backend` means; the default one if None."""
    return default_backend() if backend is None else _checked(backend)


def _checked(backend: Any) -> EngineClient:
    if isinstance(backend, str):
        raise InvalidRequest(
            f"{backend!r} is an address, not a backend",
            param="backend",
            hint=f"connect to it once: backend=sl.connect({backend!r})",
        )
    if isinstance(backend, type) or not callable(getattr(backend, "submit", None)):
        raise InvalidRequest(
            f"{backend!r} is no backend",
            param="backend",
            hint="give an sl.Engine(...), an sl.connect(address) or another backend's object",
        )
    engine: EngineClient = backend
    return engine


@located
def flush_cache(backend: EngineClient | None = None) -> bool:
    """Drop every cached prefix that is not in use. False when there is no engine."""
    engine = _default if backend is None else _checked(backend)
    if engine is None:
        return False
    engine.flush_cache()
    return True


@located
def get_server_info(backend: EngineClient | None = None) -> dict[str, Any] | None:
    """What is served, and the engine's counters (`EngineStats`). None when there is no engine."""
    engine = _default if backend is None else _checked(backend)
    if engine is None:
        return None
    stats = engine.stats()  # first: a server tells with them what it serves now
    info: dict[str, Any] = msgspec.to_builtins(engine.info)
    return info | {"stats": msgspec.to_builtins(stats)}
