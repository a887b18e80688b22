"""The pool of KV slots: which token-sized rows of the KV cache are free."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stolon.errors import InternalError

Slots = NDArray[np.int64]


class SlotPool:
    """Hands out slot ids ``0 .. num_slots - 1``, each to one owner at a time.

    Free ids are a stack, so the slots given back last are handed out first (their memory is warm),
    in the order in which they were given back. A fresh pool hands out ascending ids.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 0:
            raise InternalError(f"a pool can't have {num_slots} slots")
        self.num_slots = num_slots
        self._stack: Slots = np.arange(num_slots - 1, -1, -1, dtype=np.int64)
        self._top = num_slots
        self._in_use = np.zeros(num_slots, dtype=np.bool_)
        self._mark = np.zeros(num_slots, dtype=np.int64)

    @property
    def num_free(self) -> int:
        """How many slots can be allocated now."""
        return self._top

    def alloc(self, n: int) -> Slots | None:
        """Take `n` slots, int64 ``[n]``; None, and nothing taken, when fewer are free."""
        if n < 0:
            raise InternalError(f"can't allocate {n} slots")
        if n > self._top:
            return None
        taken = self._stack[self._top - n : self._top][::-1].copy()
        self._top -= n
        self._in_use[taken] = True
        return taken

    def free(self, slots: Slots) -> None:
        """Give slots back; InternalError, and none freed, on a foreign, free or repeated id."""
        n = len(slots)
        if n == 0:
            return
        if slots.min() < 0 or slots.max() >= self.num_slots:
            raise InternalError(f"freeing slots that are not in a pool of {self.num_slots}")
        if not self._in_use[slots].all():
            twice = slots[~self._in_use[slots]]
            raise InternalError(f"freeing slot {int(twice[0])}, which is free already")
        # A repeated id keeps only the last of its marks, so its first occurrence reads back
        # another's.
        order = np.arange(n, dtype=np.int64)
        self._mark[slots] = order
        if not np.array_equal(self._mark[slots], order):
            raise InternalError("freeing a slot twice in one call")
        self._in_use[slots] = False
        self._stack[self._top : self._top + n] = slots[::-1]
        self._top += n

    def free_slots(self) -> Slots:
        """A copy of the free ids, in no particular order. For checks."""
        return self._stack[: self._top].copy()

    def check_integrity(self) -> None:
        """Raise InternalError unless the stack and the in-use flags say the same."""
        free = self._stack[: self._top]
        if len(np.unique(free)) != len(free):
            raise InternalError("the free list holds a slot twice")
        if self._in_use[free].any() or int(self._in_use.sum()) != self.num_slots - self._top:
            raise InternalError("the free list and the in-use flags disagree")
