"""The classes of the C++ module `_fsm` in Python, for installations without a compiler.

They mean the same and take hundreds of times longer, milliseconds for a first mask; see `_fsm.pyi`
for the contract and the C++ for the reasons.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stolon.constrained.fsm.program import ACCEPT, ENTER, FAR, MATCH, SPLIT

__all__ = ["Automaton", "Trie"]

DEAD, OVER = -1, -2
PICKED = 6
BELOW, FREE = -1, -2  # counts far below the lower bound, and between the bounds

_Ints = npt.NDArray[np.int64]
_Counts = tuple[int, ...]
_Config = tuple[int, int, _Counts]  # instruction, graph node, counts of the loops around


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

    def __len__(self) -> int:
        return len(self.children) - 1


class Automaton:
    def __init__(
        self,
        trie: Trie,
        start: int,
        code: _Ints,
        targets: _Ints,
        nodes: _Ints,
        edges: _Ints,
        *,
        memory: int,
        set_size: int,
        work: int,
    ) -> None:
        self.memory = 0
        self.work = work
        self._max_memory, self._max_set = memory, set_size
        self._trie = trie
        self._code = code.tolist()
        self._targets = targets.tolist()
        self._start = start
        self._edges = [[tuple(e) for e in edges[a:b].tolist()] for a, b in nodes[:, :2].tolist()]
        self._ends = (nodes[:, 2] != 0).tolist()
        self._rest: list[int] = []  # shortest text from a node
        for out, end in zip(self._edges, self._ends, strict=True):
            more = min((1 + self._rest[to] for _, _, to in out), default=FAR)
            self._rest.append(0 if end else more)
        self._ids: dict[tuple[bool, frozenset[_Config]], int] = {}
        self._states: list[tuple[bool, frozenset[_Config]]] = []
        self._next: dict[int, int] = {}
        self._coarse: dict[int, int] = {}
        self._done = 0
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._states)

    def start(self) -> int:
        with self._lock:
            self._done = 0
            out: set[_Config] = set()
            accepting = self._close(self._start, (), out)
            return self._intern(accepting, out)

    def advance(self, state: int, token: int, /) -> int:
        text = self._trie.texts[token] if 0 <= token < len(self._trie.texts) else b""
        return self.advance_bytes(state, text) if text else DEAD

    def advance_bytes(self, state: int, text: bytes, /) -> int:
        with self._lock:
            self._done = 0
            for byte in text:
                state = self._step(state, byte)
                if state < 0:
                    break
            return state

    def accepting(self, state: int, /) -> bool:
        return self._states[state][0]

    def closed(self, state: int, /) -> bool:
        return not self._states[state][1]

    def coarse(self, state: int, /) -> int:
        with self._lock:
            known = self._coarse.get(state)
            if known is None:
                accepting, configs = self._states[state]
                known = self._intern(accepting, {self._coarser(c) for c in configs})
                if known >= 0:
                    self._coarse[state] = self._coarse[known] = known
            return known

    def _coarser(self, config: _Config) -> _Config:
        pc, node, counts = config
        changed = list(counts)
        loop = self._code[pc][7]
        while loop >= 0:
            _, depth, _, _, low, high, _, outer, body = self._code[loop]
            count = counts[depth - 1]
            reach = self._trie.longest // max(body, 1) + 2
            if count + reach < low:
                changed[depth - 1] = BELOW
            elif high >= 0 and low <= count and count + reach < high:
                changed[depth - 1] = FREE
            loop = outer
        return pc, node, tuple(changed)

    def fill(self, state: int, row: npt.NDArray[np.int32], /) -> bool:
        with self._lock:
            self._done = 0
            states = np.full(len(self._trie) + 1, DEAD, np.int64)
            states[0] = state
            allowed = np.zeros(len(row) * 32, bool)
            for nodes, parents, byte, tokens, ends in self._trie.levels:
                keys = np.where(states[parents] < 0, -1, states[parents] * 256 + byte)
                unique, inverse = np.unique(keys, return_inverse=True)
                to = [k if k < 0 else self._step(k >> 8, k & 255) for k in unique.tolist()]
                if OVER in to:
                    return False
                states[nodes] = np.array(to, np.int64)[inverse]
                allowed[tokens] = states[ends] >= 0
                if not (states[nodes] >= 0).any():
                    break
            row |= np.packbits(allowed, bitorder="little").view(np.int32)
            return True

    def forced(self, state: int, limit: int, /) -> tuple[bytes, int]:
        with self._lock:
            self._done = 0
            out = bytearray()
            while len(out) < limit and not self._states[state][0]:
                live = {
                    (low, high)
                    for _, node, _ in self._states[state][1]
                    for low, high, _ in self._edges[node]
                }
                if len(live) != 1 or any(low != high for low, high in live):
                    break
                ((byte, _),) = live
                to = self._step(state, byte)
                if to < 0:
                    return bytes(out), OVER
                out.append(byte)
                state = to
            return bytes(out), state

    def mergeable(self, state: int, tail: bytes, count: int, /) -> tuple[int, list[bytes]]:
        with self._lock:
            begin = max(len(tail) - self._trie.longest, 0)
            found, more = len(tail), list[bytes]()
            state = self.coarse(state)
            if state < 0:
                return begin, more
            self._done = 0
            for at in range(begin, len(tail)):
                root = self._trie.find(tail[at:])
                beyond = []
                for byte, child in sorted(self._trie.children[root].items()) if root else ():
                    # One for each first byte is enough.
                    found_beyond = self._token_from(child, state, byte)
                    if found_beyond == OVER:
                        return begin, more
                    if isinstance(found_beyond, bytes):
                        beyond.append(found_beyond)
                if beyond:
                    found = min(found, at)
                    picked = min(len(beyond), PICKED)
                    some = [beyond[i * len(beyond) // picked] for i in range(picked)]
                    more.extend(some[: count - len(more)])
            at = found - 1
            while at >= 0 and found - at <= self._trie.longest:
                if at + self._trie.match(tail[at:]) > found:
                    found = at
                at -= 1
            return found, more

    def _token_from(self, node: int, state: int, byte: int) -> bytes | int:
        """What the first token at or below a node has from `byte` on, if `state` allows it."""
        todo = [(node, state, bytes((byte,)))]
        while todo:
            node, here, text = todo.pop()
            to = self._step(here, text[-1])
            if to == OVER:
                return OVER
            if to >= 0:
                if self._trie.tokens[node]:
                    return text
                children = sorted(self._trie.children[node].items(), reverse=True)
                todo.extend((child, to, text + bytes((b,))) for b, child in children)
        return DEAD

    def shortest(self, state: int, limit: int, /) -> list[int] | None:
        with self._lock:
            self._done = 0
            text = bytearray()
            while not self._states[state][0]:
                far = {c: self._distance(c) for c in self._states[state][1]}
                best = min(far.values())
                ways = [
                    max(range(low, high + 1), key=_liking)
                    for (_, node, _), distance in far.items()
                    if distance == best
                    for low, high, to in self._edges[node]
                    if self._rest[to] == min(self._rest[t] for _, _, t in self._edges[node])
                ]
                if best + len(text) > limit:
                    return None
                byte = max(sorted(ways), key=_liking)
                state = self._step(state, byte)
                if state < 0:
                    return None
                text.append(byte)
            return self._fewest(bytes(text))

    def _fewest(self, text: bytes) -> list[int] | None:
        """The fewest tokens that spell a text."""
        best: list[list[int] | None] = [None] * len(text) + [[]]
        for at in reversed(range(len(text))):
            node: int | None = 0
            for end in range(at, len(text)):
                node = self._trie.children[node].get(text[end]) if node is not None else None
                if node is None:
                    break
                rest, here = best[end + 1], best[at]
                tokens = self._trie.tokens[node]
                if tokens and rest is not None and (here is None or len(rest) < len(here)):
                    best[at] = [tokens[0], *rest]
        return best[0]

    def _distance(self, config: _Config) -> int:
        pc, node, counts = config
        _, _, root, _, _, _, length, loop, _ = self._code[pc]
        more = min((1 + self._rest[to] for _, _, to in self._edges[node]), default=FAR)
        total: int = more + length - self._rest[root]
        while loop >= 0:
            _, depth, _, _, low, _, length, outer, body = self._code[loop]
            total += max(0, low - counts[depth - 1] - 1) * body + length
            loop = outer
        return min(total, FAR)

    def _step(self, state: int, byte: int) -> int:
        key = state << 8 | byte
        known = self._next.get(key)
        if known is not None:
            return known
        out: set[_Config] = set()
        accepting = False
        for pc, node, counts in self._states[state][1]:
            self._done += 1
            for low, high, to in self._edges[node]:
                if low <= byte <= high:
                    if self._edges[to]:
                        out.add((pc, to, counts))
                    if self._ends[to]:
                        accepting |= self._close(self._code[pc][3], counts, out)
                    break
        found = self._intern(accepting, out)
        if found != OVER:
            self._next[key] = found
            self.memory += 64
        return found

    def _close(self, pc: int, counts: _Counts, out: set[_Config]) -> bool:
        """Add what can be reached without text; whether the end can."""
        accepting = False
        todo = [(pc, counts, frozenset[int]())]
        seen = set(todo)
        while todo and self._done <= self.work:
            pc, counts, entered = todo.pop()
            self._done += 1
            op, depth, x, y, low, high, _, _, body = self._code[pc]
            ways: list[tuple[int, _Counts, frozenset[int]]] = []
            if op == MATCH:
                out.add((pc, x, counts))
            elif op == ACCEPT:
                accepting = True
            elif op == SPLIT:
                ways = [(to, counts, entered) for to in self._targets[x:y]]
            elif op == ENTER:
                ways = [(x, (*counts, 0), entered | {depth} if body else entered)]
                if low == 0:
                    ways.append((y, counts, entered))
            elif depth - 1 not in entered:
                count, outer = counts[-1], counts[:-1]
                going, leaving = True, count != BELOW
                if count >= 0:
                    count += 1
                    going, leaving = high < 0 or count < high, count >= low
                    count = min(count, low) if high < 0 else count
                if going:
                    again = entered if body else entered | {depth - 1}
                    ways.append((x, (*outer, count), again))
                if leaving:
                    ways.append((y, outer, entered))
            for way in ways:
                if way not in seen:
                    seen.add(way)
                    todo.append(way)
        return accepting

    def _intern(self, accepting: bool, configs: set[_Config]) -> int:
        over = self._done > self.work or self.memory > self._max_memory
        if over or len(configs) > self._max_set:
            return OVER
        if not configs and not accepting:
            return DEAD
        key = (accepting, frozenset(configs))
        state = self._ids.get(key)
        if state is None:
            state = self._ids[key] = len(self._states)
            self._states.append(key)
            self.memory += 200 + 150 * len(configs)
        return state


def _liking(byte: int) -> int:
    """How well a byte reads, for texts that the automaton writes itself."""
    char = chr(byte)
    if "a" <= char <= "z" or "0" <= char <= "9":
        return 4
    if "A" <= char <= "Z":
        return 3
    return 2 if 32 < byte < 127 else int(byte == 32)
