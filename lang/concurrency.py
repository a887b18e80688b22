"""How many programs of a batch run at once."""

from __future__ import annotations

import time
from typing import Literal, Protocol

from stolon.errors import StolonError
from stolon.lang.run import ProgramRun
from stolon.lang.runtime_loop import spawn
from stolon.srt.client import EngineClient, EngineStats

# Programs at once before the engine has said anything, and for engines that say nothing.
AUTO_LIMIT = 64
_LEAST = 4
# The body of a ``def`` program takes a thread while it runs; that of an ``async def`` one takes none.
_MOST = {False: 512, True: 4096}
# Tokens computed again, as a share of those computed once, that are too many.
_LOSS = 0.05
# As many times as run at once have programs to end without such a loss before one more may run.
_PATIENCE = 4
# Seconds between two looks at the engine.
_INTERVAL = 0.25


class Concurrency(Protocol):
    """Places for programs that run at the same time."""

    @property
    def limit(self) -> int: ...

    def observe(self, running: int, run: ProgramRun | None) -> None:
        """A program has finished, if it began at all; before that, `running` ran."""
        ...


class Fixed:
    """As many as the caller says."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def observe(self, running: int, run: ProgramRun | None) -> None:
        return None


class Adaptive:
    """As many as keep the engine busy, and as its cache can hold.

    While no request waits in the engine and all places are in use, a quarter more are added. A
    quarter is taken away when more requests wait than run, or when sequences are put back for lack
    of room more often than programs end. In between, a short queue: the engine never idles, and
    what waits costs nothing.

    Programs of several requests need more: what one computed has to be there when it comes back. If
    it was evicted meanwhile, there are too many, however short the queue. Then as many as the
    cache has room for may run, and one more is tried now and then.
    """

    def __init__(self, client: EngineClient, *, is_async: bool) -> None:
        self.limit = AUTO_LIMIT
        self._client = client
        self._most = _MOST[is_async]
        self._ceiling = self._most
        self._looked_at = 0.0
        self._looking = False
        self._retractions: int | None = None
        self._ended = 0  # programs since the last look
        self._stale = 0  # programs still to end that began under another limit
        self._seen = _Work()

    def observe(self, running: int, run: ProgramRun | None) -> None:
        self._ended += 1
        if self._stale:
            self._stale -= 1
        elif run is not None:
            self._seen.add(run)
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
        ended, self._ended = self._ended, 0
        put_back = 0 if self._retractions is None else stats.retractions - self._retractions
        self._retractions = stats.retractions
        seen = self._seen
        if seen.lost > _LOSS * seen.fresh:
            fitting = stats.kv_slots * seen.programs // seen.fresh
            self.limit = self._ceiling = max(_LEAST, min(self.limit * 3 // 4, fitting))
            self._stale, self._seen = running, _Work()
        if self._stale:
            return
        if seen.programs >= _PATIENCE * self.limit:
            self._ceiling = min(self._most, self._ceiling + 1)
            self._seen = _Work()
        if put_back > ended or stats.waiting > max(stats.running, _LEAST):
            self.limit = max(_LEAST, self.limit - max(1, self.limit // 4))
        elif stats.waiting == 0 and running >= self.limit:
            self.limit = min(self._ceiling, self.limit + max(1, self.limit // 4))


class _Work:
    """Tokens of programs that ended: computed for the first time, and again because they were evicted."""

    def __init__(self) -> None:
        self.programs = 0
        self.fresh = 1
        self.lost = 0

    def add(self, run: ProgramRun) -> None:
        usages = [result.usage for call in run.calls for result in call.results if result]
        self.programs += 1
        recomputed = run.blocks.recomputed
        self.lost += recomputed
        self.fresh += sum(u.computed_tokens + u.completion_tokens for u in usages) - recomputed


def places(wanted: int | Literal["auto"], client: EngineClient, *, is_async: bool) -> Concurrency:
    """The rule for a batch on an engine."""
    return Adaptive(client, is_async=is_async) if wanted == "auto" else Fixed(wanted)
