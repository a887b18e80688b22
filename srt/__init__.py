"""The runtime: engine, scheduler, model runner, models, loaders, tokenizer, servers.

`Engine` pulls in torch, so it is imported when it is first asked for; the typed messages in
`stolon.srt.protocol` and the client interface in `stolon.srt.client` are light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stolon.srt.engine import Engine
    from stolon.srt.generate import Output

__all__ = ["Engine", "Output"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from stolon.srt.engine import Engine

        return Engine
    if name == "Output":
        from stolon.srt.generate import Output

        return Output
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
