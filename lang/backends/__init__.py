"""Where programs run besides the embedded engine: servers, ours and others'.

Each backend is an `EngineClient`, so a program does not know which one it runs on. Names are imported when
they are first used: programs on the embedded engine load no HTTP client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stolon.lang.backends.anthropic import Anthropic as Anthropic
    from stolon.lang.backends.connecting import connect as connect
    from stolon.lang.backends.endpoint import RuntimeEndpoint as RuntimeEndpoint
    from stolon.lang.backends.http_options import HTTPOptions as HTTPOptions
    from stolon.lang.backends.http_options import Retries as Retries
    from stolon.lang.backends.litellm import LiteLLM as LiteLLM
    from stolon.lang.backends.litellm import VertexAI as VertexAI
    from stolon.lang.backends.openai import Crusoe as Crusoe
    from stolon.lang.backends.openai import OpenAI as OpenAI
    from stolon.lang.backends.runtime import Runtime as Runtime
    from stolon.lang.backends.stolon_server import RemoteEngine as RemoteEngine

__all__ = [
    "Anthropic",
    "Crusoe",
    "HTTPOptions",
    "LiteLLM",
    "OpenAI",
    "RemoteEngine",
    "Retries",
    "Runtime",
    "RuntimeEndpoint",
    "VertexAI",
    "connect",
]

_HOMES = {
    "Anthropic": "anthropic",
    "Crusoe": "openai",
    "HTTPOptions": "http_options",
    "LiteLLM": "litellm",
    "OpenAI": "openai",
    "RemoteEngine": "stolon_server",
    "Retries": "http_options",
    "Runtime": "runtime",
    "RuntimeEndpoint": "endpoint",
    "VertexAI": "litellm",
    "connect": "connecting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
