"""Closing pressure: a generation under a grammar ends valid within its budget of tokens.

A *certificate* is a list of tokens that leads from a position to one where the text may end. A token is
only taken while a certificate that fits into the rest of the budget is known for the position after it;
else the next token of the certificate before it is taken in its place. So output is that of plain masked
sampling until the budget gets scarce, and then it closes.
"""

from __future__ import annotations

from stolon.constrained.completions import MAX_NODES, ClosingTable, Search
from stolon.constrained.matching import Matcher

__all__ = ["Closer"]

PATIENCE = 3
"""Searches without a result before a generation is left to run into its limit."""


class Closer:
    """Watches one generation. Used by one thread.

    Args:
        table: of the vocabulary.
        inject: whether forced runs are appended as they are, so that a certificate has to contain them.
    """

    def __init__(self, table: ClosingTable, *, inject: bool = True) -> None:
        self._table = table
        self._inject = inject
        self._path: list[int] | None = None
        self._failures = 0

    def choose(self, matcher: Matcher, token: int, remaining: int) -> int:
        """`token`, or the one to take instead of it: an end-of-sequence id where the text is complete.

        Args:
            matcher: at the position before the token; not changed.
            token: what was drawn, allowed by the mask.
            remaining: how many tokens may still be taken, this one included.
        """
        if self._failures >= PATIENCE:
            return token
        after = matcher.fork()
        if not after.accept(token):
            return token
        # Where a certificate is at hand, a long search would only save what was drawn.
        nodes = MAX_NODES if self._path is None else MAX_NODES // 4
        path = self._completion(after, remaining - 1, self._path, nodes)
        if path is not None:
            self._path = [token, *path]
            return token
        if self._path is None or len(self._path) > remaining:
            self._path = self._completion(matcher.fork(), remaining, None)
        if self._path is None:
            self._failures += 1
            return token
        return self._path[0] if self._path else self._table.end

    def took(self, token: int) -> None:
        """A token was appended: a chosen one, or one that the grammar forces."""
        if self._path and self._path[0] == token:
            del self._path[0]
        else:
            self._path = None

    def _completion(
        self, matcher: Matcher, limit: int, hint: list[int] | None, nodes: int = MAX_NODES
    ) -> list[int] | None:
        """At most `limit` tokens after which the text may end; `matcher` is not changed."""
        if matcher.accepting:
            return []
        if limit <= 0:
            return None
        if hint is not None and len(hint) <= limit:
            path = self._retrace(matcher.fork(), hint)
            if path is not None:
                return path
        shortest = getattr(matcher, "shortest", None)
        tokens = shortest() if shortest is not None else None
        if tokens is not None:
            path = self._spell(matcher.fork(), self._join(tokens), limit)
            if path is not None:
                return path
        search = Search(self._table, matcher, nodes)
        for tokens in search.ways():
            if len(tokens) <= limit:
                return tokens
            path = self._spell(matcher.fork(), self._join(tokens), limit)
            if path is not None:
                return path
        return search.filled(limit)

    def _join(self, tokens: list[int]) -> bytes:
        return b"".join([self._table.token_bytes[token] for token in tokens])

    def _retrace(self, matcher: Matcher, hint: list[int]) -> list[int] | None:
        """The hint as far as it is needed, if it leads to an end from here too."""
        path: list[int] = []
        while not matcher.accepting:
            forced = matcher.forced() if self._inject else []
            tokens = forced or hint[len(path) : len(path) + 1]
            if not tokens or hint[len(path) : len(path) + len(tokens)] != tokens:
                return None
            for token in tokens:
                if not matcher.accept(token):
                    return None
            path += tokens
        return path

    def _spell(self, matcher: Matcher, data: bytes, limit: int) -> list[int] | None:
        """A text as the tokens that the engine would take for it, if they are at most `limit`."""
        path: list[int] = []
        ready: list[int] = []
        while data and not matcher.accepting:
            tokens = matcher.forced() if self._inject else []
            if tokens:
                ready = []
            else:
                ready = ready or self._encode(data)
                tokens = ready[:1]
                ready = ready[1:]
            for token in tokens:
                piece = self._table.token_bytes[token]
                if not data.startswith(piece) or not matcher.accept(token):
                    token = self._table.id_of.get(data[0], -1)
                    piece, ready = data[:1], []
                    if not matcher.accept(token):
                        return None
                path.append(token)
                data = data[len(piece) :]
                if len(path) > limit:
                    return None
                if not data:
                    break
        return path if matcher.accepting else None

    def _encode(self, data: bytes) -> list[int]:
        try:
            return self._table.encode(data.decode())
        except UnicodeDecodeError:
            # It begins inside a character.
            return [self._table.id_of.get(data[0], -1)]
