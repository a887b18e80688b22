"""The bytes of every token of a vocabulary, in one piece."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload


class TokenBytes(Sequence[bytes]):
    """A read-only list of byte strings that lie one after the other.

    As objects of their own those of a vocabulary take 50 to 60 bytes each, ten times as much as they hold.
    """

    __slots__ = ("_data", "_ends")

    def __init__(self, tokens: Iterable[bytes]) -> None:
        tokens = list(tokens)
        self._data = b"".join(tokens)
        # The end of each, behind a 0.
        self._ends = array("I", accumulate(map(len, tokens), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        ends = self._ends
        if index < 0:
            index += len(ends) - 1
            if index < 0:
                raise IndexError("no such token")
        # Past the last token there is no end to read: IndexError.
        return self._data[ends[index] : ends[index + 1]]

    def __iter__(self) -> Iterator[bytes]:
        data = self._data
        return (data[start:stop] for start, stop in pairwise(self._ends))
