"""The engine that programs run on when they name none."""

from __future__ import annotations

import atexit
import threading
from typing import Any

import msgspec

from stolon.srt.client import EngineClient

_lock = threading.Lock()
_default: EngineClient | None = None


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
    """The default engine. The first call starts the embedded one, closed when Python exits."""
    global _default
    with _lock:
        if _default is None:
            from stolon.srt import Engine

            engine = Engine()
            atexit.register(engine.close)
            _default = engine
        return _default


def backend_of(backend: EngineClient | str | None) -> EngineClient | None:
    """The engine that an argument `backend` means."""
    if isinstance(backend, str):
        from stolon.lang.backends.connecting import connect

        return connect(backend)
    return backend


def flush_cache(backend: EngineClient | None = None) -> bool:
    """Drop every cached prefix that is not in use. False when there is no engine."""
    engine = backend or _default
    if engine is None:
        return False
    engine.flush_cache()
    return True


def get_server_info(backend: EngineClient | None = None) -> dict[str, Any] | None:
    """What is served, and the engine's counters (`EngineStats`). None when there is no engine."""
    engine = backend or _default
    if engine is None:
        return None
    stats = engine.stats()  # first: a server tells with them what it serves now
    info: dict[str, Any] = msgspec.to_builtins(engine.info)
    return info | {"stats": msgspec.to_builtins(stats)}
