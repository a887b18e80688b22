"""Ways to complete a text: from a position in any grammar to one where the text may end, in few tokens.

The search knows nothing of the grammar but its masks. It is greedy first: brackets and quotes close,
values are short. Then it improves one choice after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from stolon.constrained.masks import Mask
from stolon.constrained.matching import Matcher
from stolon.constrained.vocabulary import Vocabulary

__all__ = ["MAX_NODES", "ClosingTable", "Search"]

MAX_TOKENS = 2048
"""Longest completion looked for."""
MAX_NODES = 1000
"""Positions visited by one search; each takes some ten microseconds."""
MAX_KNOWN = 4096
"""Masks whose choices are remembered."""
MAX_LONG = 16
"""Bytes of the longest tokens that fill a string."""
FEW = 40
"""With more bytes to choose from, a text is inside a string or the like: its quote comes first."""
QUOTE = 0x22


class Options(NamedTuple):
    """What may come next, as tokens of one byte, the most likely to end something first.

    Attributes:
        ids: to choose from; of many, one of each class. A long token comes last, for text that must
            have some length.
        leaders: the first of each class, for when the same mask comes again: a repetition may go on
            for ever, and what ends it is of another class.
        filling: inside a string that may not end yet; then a long token is the first choice.
    """

    ids: list[int]
    leaders: list[int]
    filling: bool

    def at(self, visit: int) -> int:
        """What to take at the first visit, and at further ones right after it."""
        if self.filling:
            if visit % 2 == 0:
                return self.ids[-1]
            visit //= 2
        turns = self.leaders + self.ids
        return turns[visit % len(turns)]


class ClosingTable:
    """What closing needs to know of a vocabulary. Build it off the loop; shared by all its closers."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.token_bytes = vocabulary.token_bytes
        self.encode: Callable[[str], list[int]] = vocabulary.encode
        self.end = min(vocabulary.eos_ids)
        hidden = vocabulary.special_ids | vocabulary.eos_ids
        self.id_of: dict[int, int] = {}
        for id, text in enumerate(vocabulary.token_bytes):
            if len(text) == 1 and id not in hidden:
                self.id_of.setdefault(text[0], id)
        self._bytes = np.array(list(self.id_of), np.int64)
        self._ids = np.array(list(self.id_of.values()), np.int64)
        long = [id for id, text in enumerate(vocabulary.token_bytes) if 1 < len(text) <= MAX_LONG]
        long.sort(key=lambda id: -len(vocabulary.token_bytes[id]))
        self._long = np.array([id for id in long if id not in hidden], np.int64)
        self._options: dict[int, Options] = {}

    def options(self, mask: Mask) -> Options:
        """The choices of a mask. Masks are of one pool."""
        known = self._options.get(mask.id)
        if known is None:
            if len(self._options) >= MAX_KNOWN:
                self._options.clear()
            known = self._options[mask.id] = self._order(mask)
        return known

    def longest(self, mask: Mask) -> int | None:
        """The longest token of a mask; None where it has no token but the end."""
        ids = self.options(mask).ids
        return max(ids, key=lambda id: len(self.token_bytes[id]), default=None)

    def _order(self, mask: Mask) -> Options:
        allowed = self._bytes[mask.which(self._ids)].tolist()
        many = len(allowed) > FEW
        quote = many and QUOTE in allowed
        order = sorted(allowed, key=lambda byte: (not (quote and byte == QUOTE), *_rank(byte)))
        leaders: dict[int, int] = {}
        for byte in order:
            leaders.setdefault(_class(byte), byte)
        ids = [self.id_of[byte] for byte in (leaders.values() if many else order)]
        long = self._long[mask.which(self._long)][:1].tolist()
        if quote:
            ids = ids[:1]  # what else the string could hold makes it no shorter
        filling = many and not quote and bool(long)
        return Options(ids + long, [self.id_of[byte] for byte in leaders.values()], filling)


class _Turn(NamedTuple):
    """A place where another token could have been taken: after the first `at` of them."""

    at: int
    others: list[int]


class _Found(NamedTuple):
    tokens: list[int]
    turns: list[_Turn]


class Search:
    """Looks for a short way to an end: greedily, then by improving one choice after another.

    Choices that do not depend on each other, as those of an object's values, find their best this way.
    """

    def __init__(self, table: ClosingTable, root: Matcher, nodes: int = MAX_NODES) -> None:
        self._table = table
        self._root = root
        self._left = nodes

    def ways(self) -> Iterator[list[int]]:
        """Tokens that lead to an end, each list shorter than the one before."""
        best = self._descend([], MAX_TOKENS)
        tried: set[tuple[int, ...]] = set()
        while best is not None:
            yield best.tokens
            best = self._improve(best, tried)

    def filled(self, limit: int) -> list[int] | None:
        """At most `limit` tokens to an end, each the longest: for text that must have some length."""
        matcher = self._root.fork()
        tokens: list[int] = []
        while not matcher.accepting:
            step = matcher.forced()
            if not step:
                longest = self._table.longest(matcher.mask())
                step = [] if longest is None else [longest]
            if not step or len(tokens) + len(step) > limit or not all(map(matcher.accept, step)):
                return None
            tokens += step
        return tokens

    def _improve(self, best: _Found, tried: set[tuple[int, ...]]) -> _Found | None:
        """A shorter way that leaves `best` at one turn; those with little to choose from first."""
        for turn in sorted(best.turns, key=lambda turn: len(turn.others)):
            for other in turn.others:
                head = [*best.tokens[: turn.at], other]
                if tuple(head) in tried:
                    continue
                tried.add(tuple(head))
                found = self._descend(head, len(best.tokens) - 1)
                if found is not None:
                    before = [one for one in best.turns if one.at < turn.at]
                    return found._replace(turns=before + found.turns)
                if self._left < 0:
                    return None
        return None

    def _descend(self, tokens: list[int], limit: int) -> _Found | None:
        """At most `limit` tokens that begin with `tokens`."""
        matcher = self._root.fork()
        if not all(map(matcher.accept, tokens)):
            return None
        turns: list[_Turn] = []
        visits: dict[int, int] = {}
        last, again = -1, 0
        while not matcher.accepting:
            self._left -= 1
            if len(tokens) >= limit or self._left < 0:
                return None
            step = matcher.forced()
            if not step:
                mask = matcher.mask()
                options = self._table.options(mask)
                if not options.leaders:
                    return None
                # At the same mask again, something else: a repetition may go on for ever.
                visits[mask.id] = visits.get(mask.id, 0) + 1
                again = again + 1 if mask.id == last else visits[mask.id] // 8
                last = mask.id
                token = options.at(again)
                turns.append(_Turn(len(tokens), [one for one in options.ids if one != token]))
                step = [token]
            for token in step:
                if not matcher.accept(token):
                    return None
                tokens.append(token)
        return _Found(tokens, turns) if len(tokens) <= limit else None


_ENDS = b'}])>",:;'
_LATE = b"-+. \t\n\r\\"


def _rank(byte: int) -> tuple[int, int]:
    if byte in _ENDS:
        return 0, _ENDS.index(byte)
    if byte in _LATE:
        return 2, _LATE.index(byte)
    return (1 if byte < 0x80 else 3), byte


def _class(byte: int) -> int:
    """Bytes of one class are seldom told apart by a grammar."""
    if byte in b"0123456789":
        return 0x30
    if 0x41 <= byte <= 0x5A or 0x61 <= byte <= 0x7A:
        return 0x41 + (byte & 0x20)
    if byte >= 0x80:
        return 0x80
    return 0x01 if byte < 0x20 or byte == 0x7F else byte
