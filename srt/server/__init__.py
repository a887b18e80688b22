"""HTTP servers over an engine process: OpenAI-compatible and native routes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stolon.srt.server.app import create_app as create_app
    from stolon.srt.server.launch import serve as serve
    from stolon.srt.server.limits import ServerLimits as ServerLimits

__all__ = ["ServerLimits", "create_app", "serve"]

_HOMES = {"ServerLimits": "limits", "create_app": "app", "serve": "launch"}


def __getattr__(name: str) -> object:
    """Import on first use: the engine process is in this folder too and needs no web framework."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
