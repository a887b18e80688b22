"""Tokens of text that comes again: the literals of a program are tokenised once, not once a run."""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

MEMO_BYTES = 8 << 20
CHUNK_CHARS = 256
"""Text is remembered in chunks of at least this length, where it may be cut: then what two texts share at
their beginning is tokenised once, although they go on differently."""
MAX_CHUNK_CHARS = 64 << 10
"""Longer chunks are not remembered: one document must not drive out everything else."""
_OVERHEAD = 200  # of an entry, about, in bytes


class TokenMemo:
    """Tokens by text, least recently used dropped first. Thread-safe.

    Args:
        cut: matches (with no length) where a text may be cut so that its parts, tokenised alone, have
            the tokens of the whole; None if that is not known of the tokenizer.
        max_bytes: memory it may take.
    """

    def __init__(self, cut: re.Pattern[str] | None = None, *, max_bytes: int = MEMO_BYTES) -> None:
        self._cut = cut
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, bool], array[int]] = OrderedDict()
        self.nbytes = 0

    def encode(
        self, text: str, encode: Callable[[str, bool], Sequence[int]], *, at_start: bool
    ) -> list[int]:
        """The tokens of a text: those remembered, and `encode` for what is not."""
        ids: list[int] = []
        for chunk in self._chunks(text):
            key = (chunk, at_start)
            at_start = False
            with self._lock:
                found = self._entries.get(key)
                if found is not None:
                    self._entries.move_to_end(key)
            if found is None:
                found = array("i", encode(*key))
                self._keep(key, found)
            ids.extend(found)
        return ids

    def _chunks(self, text: str) -> Iterator[str]:
        """Cut from the beginning, so that equal beginnings give equal chunks."""
        start = 0
        while self._cut is not None and len(text) - start > CHUNK_CHARS:
            match = self._cut.search(text, start + CHUNK_CHARS)
            if match is None:
                break
            yield text[start : match.start()]
            start = match.start()
        yield text[start:]

    def _keep(self, key: tuple[str, bool], ids: array[int]) -> None:
        if len(key[0]) > MAX_CHUNK_CHARS:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = ids
            self.nbytes += _size(key, ids)
            while self.nbytes > self._max_bytes:
                self.nbytes -= _size(*self._entries.popitem(last=False))


def _size(key: tuple[str, bool], ids: array[int]) -> int:
    return _OVERHEAD + 4 * len(key[0]) + ids.itemsize * len(ids)
