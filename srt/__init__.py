"""The runtime: engine, scheduler, model runner, models, loaders, tokenizer, servers.

`Engine` pulls in torch, so it is imported when it is first asked for; the typed messages in
`stolon.srt.protocol` and the client interface in `stolon.srt.client` are light.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stolon.srt.collecting import Output
    from stolon.srt.engine import Engine

__all__ = ["Engine", "Output"]

# Read by the OpenMP runtime when torch is first loaded: how long an idle worker spins before it sleeps. The
# default of several milliseconds makes everything up to 70 times slower when another process wants the cores
# (measured: loading a model took 37 s); this much costs 4 % of one sequence's speed on an idle machine.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from stolon.srt.engine import Engine

        return Engine
    if name == "Output":
        from stolon.srt.collecting import Output

        return Output
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
