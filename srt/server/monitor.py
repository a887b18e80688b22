"""Is the engine there, and does it get on with its work?"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import anyio.to_thread

from stolon.errors import EngineClosed, StolonError
from stolon.srt.client import EngineClient, EngineStats

log = logging.getLogger("stolon.server")


class EngineMonitor:
    """Watches the engine's step counter.

    The engine is *live* if, within the last `window` seconds, it answered and either had nothing to
    do or had advanced its step counter. A slow answer alone proves nothing: a busy engine is a
    healthy engine.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        window: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._window = window
        self._clock = clock
        self._steps = -1
        self._progress_at = clock()
        self._pending: asyncio.Task[EngineStats | None] | None = None
        self.closed = False

    async def observe(self, wait: float | None = None) -> EngineStats | None:
        """Ask for stats, at most one question at a time.

        None if the engine gave none within `wait`.
        """
        if self._pending is None or self._pending.done():
            self._pending = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait({self._pending}, timeout=wait)
        return self._pending.result() if done else None

    @property
    def live(self) -> bool:
        return not self.closed and self._clock() - self._progress_at < self._window

    async def watch(self, period: float = 1.0) -> None:
        """Observe for ever."""
        while True:
            await self.observe()
            await asyncio.sleep(period)

    async def _ask(self) -> EngineStats | None:
        try:
            stats = await anyio.to_thread.run_sync(self._client.stats, abandon_on_cancel=True)
        except EngineClosed:
            self.closed = True
            return None
        except StolonError:
            return None
        except Exception:
            log.exception("stats failed")
            return None
        self.closed = False
        if stats.steps != self._steps or not (stats.running or stats.waiting):
            self._steps = stats.steps
            self._progress_at = self._clock()
        return stats
