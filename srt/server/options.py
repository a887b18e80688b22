"""Arguments of the engine, as they travel to the engine process."""

from __future__ import annotations

import msgspec

from stolon.srt.protocol import Speculation


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of Engine; None leaves the choice to it."""

    model: str
    dtype: str = "auto"
    kv_tokens: int | None = None
    max_running: int | None = None
    threads: int | None = None
    context_length: int | None = None
    speculation: Speculation = "auto"
