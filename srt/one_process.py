"""What works in one process only: its threads do not come along when the process is forked."""

from __future__ import annotations

import os

from stolon.errors import EngineClosed

__all__ = ["OneProcess"]


class OneProcess:
    """The process that an engine was made in.

    In a fork of it nobody would ever answer, and a lock may be held by a thread that is not there: whatever
    is called from outside asks here before it takes its first lock.
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def here(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise EngineClosed in any other process."""
        if os.getpid() != self._pid:
            raise EngineClosed(
                "the engine belongs to another process, which this one was forked from",
                hint="make an engine in this process, or start it by "
                "multiprocessing.get_context('spawn')",
            )
