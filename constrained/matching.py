"""What the engine sees of a compiled grammar, whichever tier compiled it."""

from __future__ import annotations

from typing import Protocol

from stolon.constrained.masks import Mask
from stolon.errors import StolonError

__all__ = ["Grammar", "Matcher"]


class Matcher(Protocol):
    """One position in a grammar. Used by one thread at a time; copies are independent.

    Trouble at run time never raises: `error` is set, `mask` allows nothing, `accept` returns False.
    """

    error: StolonError | None

    def mask(self) -> Mask:
        """The ids allowed now: never a special one, end-of-sequence ids exactly where the text may end."""
        ...

    def accept(self, token: int) -> bool:
        """Take one token. False, and no change, if it is not allowed here."""
        ...

    def forced(self) -> list[int]:
        """The tokens that must come next, canonical for the tokenizer, not accepted yet.

        A token is left out while some allowed continuation could merge with it.
        """
        ...

    def catch_up(self) -> bool:
        """Whether the other calls answer for the whole text; False only of a matcher that may not wait.

        Until then `mask` allows nothing, `forced` has nothing, and the text is not `accepting`. May
        bring the matcher a part of the way.
        """
        ...

    @property
    def accepting(self) -> bool:
        """Whether the text so far is complete."""
        ...

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may follow (or did)."""
        ...

    def fork(self) -> Matcher:
        """An independent copy at the same position."""
        ...

    def rollback(self, n: int) -> None:
        """Take back the last n accepted tokens. An error stays."""
        ...


class Grammar(Protocol):
    """A compiled grammar. Immutable and shared; every request walks its own matcher."""

    error: StolonError | None

    def start(self, *, wait: bool = True) -> Matcher:
        """A matcher at the beginning of the grammar. Takes tens of microseconds at most.

        Args:
            wait: whether its calls may wait for something that is compiled. If not, they never take
                longer than a few milliseconds, and `catch_up` tells where they had to do without.
        """
        ...
