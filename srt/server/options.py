"""Arguments of the engine, as they travel to the engine process."""

from __future__ import annotations

import msgspec

from stolon.srt.engine_options import check_options
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

    def check(self) -> None:
        """Raise InvalidRequest for what the engine would refuse, before a process is started for it."""
        fields = msgspec.structs.asdict(self)
        check_options(**{name: fields[name] for name in fields if name not in ("model", "dtype")})
