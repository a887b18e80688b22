"""How many programs of a batch run at once."""

from __future__ import annotations

import time
from typing import Literal, Protocol

from stolon.errors import StolonError
from stolon.lang.runtime_loop import spawn
from stolon.srt.client import EngineClient, EngineStats

# Programs at once before the engine has said anything, and for engines that say nothing.
AUTO_LIMIT = 64
_LEAST = 4
# The body of a ``def`` program takes a thread while it runs; that of an ``async def`` one takes none.
_MOST = {False: 512, True: 4096}
# Seconds between two looks at the engine.
_INTERVAL = 0.25


class Concurrency(Protocol):
    """Places for programs that run at the same time."""

    @property
    def limit(self) -> int: ...

    def observe(self, running: int) -> None:
        """A program has finished; before that, `running` ran."""
        ...


class Fixed:
    """As many as the caller says."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def observe(self, running: int) -> None:
        return None


class Adaptive:
    """As many as keep the engine busy.

    While no request waits in the engine and all places are in use, a quarter more are added. A
    quarter is taken away when sequences were put back for lack of room since the last look, or when
    more requests wait than run. In between, a short queue: the engine never idles, and what waits
    costs nothing.
    """

    def __init__(self, client: EngineClient, *, is_async: bool) -> None:
        self.limit = AUTO_LIMIT
        self._client = client
        self._most = _MOST[is_async]
        self._looked_at = 0.0
        self._looking = False
        self._retractions: int | None = None

    def observe(self, running: int) -> None:
        now = time.monotonic()
        if self._looking or now - self._looked_at < _INTERVAL:
            return
        self._looking = True
        self._looked_at = now
        # In a thread: for an engine behind a socket it is a round trip.
        spawn(lambda: self._look(running))

    def _look(self, running: int) -> None:
        try:
            self.adapt(self._client.stats(), running)
        except StolonError:
            return  # what is wrong with the engine shows in the items
        finally:
            self._looking = False

    def adapt(self, stats: EngineStats, running: int) -> None:
        """Set the limit for what the engine says, while `running` programs run."""
        if not stats.kv_slots:
            return  # an engine that does not tell
        before = self._retractions
        self._retractions = stats.retractions
        if (before is not None and stats.retractions > before) or stats.waiting > max(
            stats.running, _LEAST
        ):
            self.limit = max(_LEAST, self.limit - max(1, self.limit // 4))
        elif stats.waiting == 0 and running >= self.limit:
            self.limit = min(self._most, self.limit + max(1, self.limit // 4))


def places(wanted: int | Literal["auto"], client: EngineClient, *, is_async: bool) -> Concurrency:
    """The rule for a batch on an engine."""
    return Adaptive(client, is_async=is_async) if wanted == "auto" else Fixed(wanted)
