"""What the analysis of one schema may cost."""

from __future__ import annotations

import time

from stolon.errors import GrammarError

__all__ = ["Budget", "TooComplex"]


class TooComplex(GrammarError):
    """The schema can't be expressed within the budget."""


class Budget:
    """Steps and processor time for one schema. Not thread-safe: the thread that made it owns it."""

    def __init__(self, *, steps: int = 400_000, seconds: float = 1.0) -> None:
        self._steps = steps
        self._deadline = time.thread_time() + seconds

    def spend(self, steps: int = 1) -> None:
        """Count work. Raises TooComplex when steps or time have run out."""
        before = self._steps
        self._steps -= steps
        if self._steps < 0 or (before >> 8 != self._steps >> 8 and self._late()):
            raise TooComplex(
                "the schema is too complex to be expressed exactly",
                hint="its combinations of allOf, anyOf, oneOf, not and if multiply; use fewer",
            )

    def _late(self) -> bool:
        return time.thread_time() > self._deadline
