"""A program as an automaton over bytes: its states, and the transitions between them.

A state is a set of configurations, each a place in the program with the counts of the loops around it.
States are built where they are first reached, within the limits.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from stolon.constrained.fsm.portable.trie import Trie
from stolon.constrained.fsm.program import ACCEPT, ENTER, FAR, MATCH, SPLIT

__all__ = ["DEAD", "OVER", "Config", "States"]

DEAD, OVER = -1, -2
BELOW, FREE = -1, -2  # counts far below the lower bound, and between the bounds

_Ints = npt.NDArray[np.int64]
_Counts = tuple[int, ...]
Config = tuple[int, int, _Counts]
"""Instruction, graph node, counts of the loops around."""


class States:
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
        self._ids: dict[tuple[bool, frozenset[Config]], int] = {}
        self._states: list[tuple[bool, frozenset[Config]]] = []
        self._next: dict[int, int] = {}
        self._coarse: dict[int, int] = {}
        self._done = 0
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._states)

    def start(self) -> int:
        with self._lock:
            self._done = 0
            out: set[Config] = set()
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

    def _coarser(self, config: Config) -> Config:
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

    def _step(self, state: int, byte: int) -> int:
        key = state << 8 | byte
        known = self._next.get(key)
        if known is not None:
            return known
        out: set[Config] = set()
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

    def _close(self, pc: int, counts: _Counts, out: set[Config]) -> bool:
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

    def _intern(self, accepting: bool, configs: set[Config]) -> int:
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
