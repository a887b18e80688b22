"""What a branch has said: its items, shared with the branches that go on from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from stolon.lang.calls import Item


class History(Sequence[Item]):
    """Append-only items: those of another history up to now, then its own.

    Going on from a history copies nothing, however long it is; what that one appends later is not
    seen.
    """

    __slots__ = ("_before", "_own", "_shared")

    _before: History | None
    _shared: int

    def __init__(self, before: History | None = None, stop: int | None = None) -> None:
        """Go on from the first `stop` items of another history, by default from all."""
        stop = stop if stop is not None else 0 if before is None else len(before)
        # One of which no own item is taken is no link worth keeping: chains grow with what is
        # said, not with the number of forks.
        while before is not None and stop <= before._shared:
            before = before._before
        self._before = before
        self._shared = stop
        self._own: list[Item] = []

    def append(self, item: Item) -> None:
        """Add an item; no other history sees it."""
        self._own.append(item)

    def since(self, start: int) -> list[Item]:
        """The items from a position on."""
        runs: list[list[Item]] = []
        node: History | None = self
        stop = len(self)
        while node is not None and stop > start:
            if stop > node._shared:
                runs.append(node._own[max(start - node._shared, 0) : stop - node._shared])
            stop = min(stop, node._shared)
            node = node._before
        return [item for run in reversed(runs) for item in run]

    def __len__(self) -> int:
        return self._shared + len(self._own)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.since(0))

    def __reversed__(self) -> Iterator[Item]:
        node: History | None = self
        stop = len(self)
        while node is not None:
            for index in range(stop - node._shared - 1, -1, -1):
                yield node._own[index]
            stop = min(stop, node._shared)
            node = node._before

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            if index.step is None and index.stop is None and (index.start or 0) >= 0:
                return self.since(index.start or 0)
            return self.since(0)[index]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        position = index % len(self)
        node = self
        while position < node._shared and node._before is not None:
            node = node._before
        return node._own[position - node._shared]
