"""A set of strings, as an interned term."""

from __future__ import annotations

from typing import Any

from stolon.constrained.regex_build import Ranges

__all__ = ["Language"]


class Language:
    """An interned term. `kind` says what `args` hold; `words` are finite sets of literal strings.

    chars (ranges) · seq (head, tail) · or (terms) · and (terms) · not (term) ·
    rep (term, low, high or None) · words (frozenset)
    """

    __slots__ = ("args", "derivatives", "id", "kind", "nullable")

    def __init__(self, kind: str, args: tuple[Any, ...], id: int, nullable: bool) -> None:
        self.kind = kind
        self.args = args
        self.id = id
        self.nullable = nullable
        self.derivatives: list[tuple[Ranges, Language]] | None = None

    @property
    def words(self) -> frozenset[str] | None:
        """The strings of a finite set given by its members; None for any other form."""
        return self.args[0] if self.kind == "words" else None

    @property
    def plain(self) -> bool:
        """Whether it is a regular expression without intersection and complement.

        A plain term is never empty, unless it is the empty set of words.
        """
        todo = [self]
        while todo:
            one = todo.pop()
            if one.kind in ("and", "not"):
                return False
            if one.kind == "seq":
                todo.extend(one.args)
            elif one.kind == "or":
                todo.extend(one.args[0])
            elif one.kind == "rep":
                todo.append(one.args[0])
        return True
