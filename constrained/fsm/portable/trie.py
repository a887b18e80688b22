"""The tokens of a vocabulary as a tree of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["Trie"]

_Ints = npt.NDArray[np.int64]


class Trie:
    def __init__(
        self, bytes: npt.NDArray[np.uint8], offsets: _Ints, use: npt.NDArray[np.uint8]
    ) -> None:
        data, ends = bytes.tobytes(), offsets.tolist()
        self.texts = [data[a:b] if u else b"" for a, b, u in zip(ends, ends[1:], use, strict=False)]
        self.longest = max(map(len, self.texts), default=0)
        self.children: list[dict[int, int]] = [{}]
        self.tokens: list[list[int]] = [[]]
        depths = [0]
        for token, text in enumerate(self.texts):
            at = 0
            for byte in text:
                to = self.children[at].get(byte)
                if to is None:
                    to = self.children[at][byte] = len(self.children)
                    self.children.append({})
                    self.tokens.append([])
                    depths.append(depths[at] + 1)
                at = to
            if text:
                self.tokens[at].append(token)
        self.levels = list(self._levels(depths))

    def _levels(self, depths: list[int]) -> Iterator[tuple[_Ints, _Ints, _Ints, _Ints, _Ints]]:
        """By depth: nodes, their parents, their bytes; tokens, and the nodes where they end."""
        size = len(depths)
        parent, byte = np.zeros(size, np.int64), np.zeros(size, np.int64)
        for at, children in enumerate(self.children):
            for b, to in children.items():
                parent[to], byte[to] = at, b
        depth = np.array(depths)
        for d in range(1, self.longest + 1):
            nodes = np.flatnonzero(depth == d)
            ends = [(t, n) for n in nodes.tolist() for t in self.tokens[n]]
            pairs = np.array(ends, np.int64).reshape(-1, 2)
            yield nodes, parent[nodes], byte[nodes], pairs[:, 0], pairs[:, 1]

    def find(self, text: bytes) -> int | None:
        at: int | None = 0
        for byte in text:
            at = self.children[at].get(byte) if at is not None else None
        return at

    def match(self, text: bytes) -> int:
        """The length of the longest token that a text begins with."""
        node: int | None = 0
        best = 0
        for i, byte in enumerate(text):
            node = self.children[node].get(byte) if node is not None else None
            if node is None:
                break
            if self.tokens[node]:
                best = i + 1
        return best

    def spell(self, text: bytes) -> list[int] | None:
        """The fewest tokens that spell a text; None if none do."""
        best: list[list[int] | None] = [None] * len(text) + [[]]
        for at in reversed(range(len(text))):
            node: int | None = 0
            for end in range(at, len(text)):
                node = self.children[node].get(text[end]) if node is not None else None
                if node is None:
                    break
                rest, here = best[end + 1], best[at]
                tokens = self.tokens[node]
                if tokens and rest is not None and (here is None or len(rest) < len(here)):
                    best[at] = [tokens[0], *rest]
        return best[0]

    def __len__(self) -> int:
        return len(self.children) - 1
