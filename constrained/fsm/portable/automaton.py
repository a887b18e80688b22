"""What is asked of an automaton's states: masks, and the texts that they tell of themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stolon.constrained.fsm.portable.states import DEAD, OVER, Config, States
from stolon.constrained.fsm.program import FAR

__all__ = ["Automaton"]

PICKED = 6  # first bytes beyond the tail, at each position of it


class Automaton(States):
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
            return self._trie.spell(bytes(text))

    def _distance(self, config: Config) -> int:
        pc, node, counts = config
        _, _, root, _, _, _, length, loop, _ = self._code[pc]
        more = min((1 + self._rest[to] for _, _, to in self._edges[node]), default=FAR)
        total: int = more + length - self._rest[root]
        while loop >= 0:
            _, depth, _, _, low, _, length, outer, body = self._code[loop]
            total += max(0, low - counts[depth - 1] - 1) * body + length
            loop = outer
        return min(total, FAR)


def _liking(byte: int) -> int:
    """How well a byte reads, for texts that the automaton writes itself."""
    char = chr(byte)
    if "a" <= char <= "z" or "0" <= char <= "9":
        return 4
    if "A" <= char <= "Z":
        return 3
    return 2 if 32 < byte < 127 else int(byte == 32)
