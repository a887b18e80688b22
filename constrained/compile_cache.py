"""Compiled grammars by content: each compiled once, however many threads ask for it at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from stolon.constrained.matching import Grammar
from stolon.errors import GrammarError

__all__ = ["CompileCache", "Key", "NotCached"]

Key = tuple[object, ...]
REFUSAL_BYTES = 512
GRAMMAR_BYTES = 64 << 10


class NotCached(GrammarError):
    """A refusal that need not come again: the machine was busy, a process was killed."""


class CompileCache:
    """Grammars and refusals, least recently used dropped first. Thread-safe.

    Args:
        entries: how many are kept.
        max_bytes: memory they may take. A grammar that grows while it is used is measured whenever it
            is asked for.
    """

    def __init__(self, *, entries: int, max_bytes: int) -> None:
        self._entries = entries
        self._max_bytes = max_bytes
        self.clear()

    def __len__(self) -> int:
        return len(self._cache)

    def clear(self) -> None:
        """Forget everything. Also for the child of a fork, where no other thread is left."""
        self._lock = threading.Lock()
        self._cache: OrderedDict[Key, Future[Grammar]] = OrderedDict()
        self._sizes: dict[Key, int] = {}  # of those that are done
        self._total = 0

    def get(self, key: Key, make: Callable[[], Grammar]) -> Grammar:
        """The grammar of a key, made in this thread or waited for.

        Raises what `make` raised. A GrammarError that is no NotCached is kept like a grammar;
        anything else is raised to those who waited, and tried again by the next one.
        """
        dropped: list[Future[Grammar]] = []
        with self._lock:
            future = self._cache.get(key)
            mine = future is None
            if future is None:
                future = self._cache[key] = Future()
            else:
                self._cache.move_to_end(key)
                dropped = self._measure(key, future)
        del dropped
        if mine:
            self._fill(key, future, make)
        try:
            return future.result()
        except GrammarError as error:
            # A fresh copy: one exception object must not collect the tracebacks of many requests.
            raise type(error)(
                error.message, param=error.param, where=error.where, hint=error.hint
            ) from None

    def peek(self, key: Key) -> Grammar | None:
        """What `get` would return, or raise, without making or waiting for it; else None."""
        with self._lock:
            future = self._cache.get(key)
        return None if future is None or not future.done() else self.get(key, future.result)

    def _fill(self, key: Key, future: Future[Grammar], make: Callable[[], Grammar]) -> None:
        try:
            grammar = make()
        except BaseException as error:
            refused = isinstance(error, GrammarError)
            passing = not refused or isinstance(error, NotCached)
            with self._lock:
                if passing and self._cache.get(key) is future:
                    del self._cache[key]
            if refused:
                # Its traceback would keep what was being compiled.
                error.__traceback__ = error.__context__ = error.__cause__ = None
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            future.set_result(grammar)
        with self._lock:
            dropped = self._measure(key, future)
        del dropped

    def _measure(self, key: Key, future: Future[Grammar]) -> list[Future[Grammar]]:
        """Take note of an entry's size as it is now, and make room. The lock is held.

        Returns what was dropped: it is freed without the lock.
        """
        dropped: list[Future[Grammar]] = []
        if not future.done() or self._cache.get(key) is not future:
            return dropped
        size = _nbytes(key, future)
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        while len(self._sizes) > 1 and (
            len(self._sizes) > self._entries or self._total > self._max_bytes
        ):
            oldest = next(one for one in self._cache if one in self._sizes)
            dropped.append(self._cache.pop(oldest))
            self._total -= self._sizes.pop(oldest)
        return dropped


def _nbytes(key: Key, future: Future[Grammar]) -> int:
    text = sum(len(part) for part in key if isinstance(part, str | bytes))
    if future.exception() is not None:
        return REFUSAL_BYTES + text
    return getattr(future.result(), "nbytes", GRAMMAR_BYTES) + text
