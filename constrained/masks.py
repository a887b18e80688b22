"""Which tokens may come next, interned: equal masks are one object, named by a small number."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stolon.constrained.vocabulary import unpack

__all__ = ["Mask", "MaskPool"]

MAX_LIST = 1024  # ids in an allow-list or a deny-list
MAX_ROWS = 4096  # distinct masks kept
MAX_BYTES = 256 << 20  # memory they may take


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The allowed ids of one step. Exactly one of `allow`, `deny` and `bits` is set.

    Attributes:
        id: equal ids of one pool mean equal masks. An evicted mask that comes back has a new id.
        count: how many ids are allowed.
        allow: the allowed ids, ascending int64, when there are at most 1,024.
        deny: the ids that are not allowed, ascending int64, when those are at most 1,024.
        bits: bool [vocab] otherwise.
    """

    id: int
    count: int
    allow: npt.NDArray[np.int64] | None = None
    deny: npt.NDArray[np.int64] | None = None
    bits: npt.NDArray[np.bool_] | None = None

    @property
    def full(self) -> bool:
        """Whether every id is allowed."""
        return self.deny is not None and not self.deny.size

    def allows(self, token: int) -> bool:
        """Whether one id of the vocabulary is allowed."""
        if self.bits is not None:
            return bool(self.bits[token])
        ids = self.allow if self.allow is not None else self.deny
        assert ids is not None
        at = int(np.searchsorted(ids, token))
        return (at < ids.size and int(ids[at]) == token) == (self.allow is not None)

    def which(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of some ids of the vocabulary are allowed."""
        if self.bits is not None:
            return self.bits[tokens]
        ids = self.allow if self.allow is not None else self.deny
        assert ids is not None
        listed: npt.NDArray[np.bool_] = np.isin(tokens, ids)
        return listed if self.allow is not None else ~listed

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.allow, self.deny, self.bits) if a is not None)


class MaskPool:
    """Masks by content, least recently used dropped first. Thread-safe."""

    def __init__(
        self, vocab_size: int, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
    ) -> None:
        self.vocab_size = vocab_size
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._masks: OrderedDict[bytes, Mask] = OrderedDict()
        self._bytes = 0
        self._next_id = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._masks)

    def intern(self, row: npt.NDArray[np.int32]) -> Mask:
        """The mask of a row of bits, int32 [ceil(vocab / 32)]; bits beyond the vocabulary are 0."""
        key = row.tobytes()
        with self._lock:
            mask = self._masks.get(key)
            if mask is not None:
                self._masks.move_to_end(key)
                return mask
        fields = _lists(unpack(row, self.vocab_size))
        with self._lock:
            mask = self._masks.get(key)
            if mask is None:
                mask = Mask(self._next_id, *fields)
                self._next_id += 1
                self._masks[key] = mask
                self._bytes += mask.nbytes + len(key)
                while len(self._masks) > self._max_rows or (
                    self._bytes > self._max_bytes and len(self._masks) > 1
                ):
                    old_key, old = self._masks.popitem(last=False)
                    self._bytes -= old.nbytes + len(old_key)
            return mask


def _lists(
    bits: npt.NDArray[np.bool_],
) -> tuple[
    int,
    npt.NDArray[np.int64] | None,
    npt.NDArray[np.int64] | None,
    npt.NDArray[np.bool_] | None,
]:
    """Count and the shortest of the three forms. The arrays are shared, hence read-only."""
    count = int(np.count_nonzero(bits))
    allow = deny = None
    if count <= MAX_LIST:
        allow = np.flatnonzero(bits).astype(np.int64, copy=False)
        allow.flags.writeable = False
        return count, allow, None, None
    if len(bits) - count <= MAX_LIST:
        deny = np.flatnonzero(~bits).astype(np.int64, copy=False)
        deny.flags.writeable = False
        return count, None, deny, None
    bits.flags.writeable = False
    return count, None, None, bits
