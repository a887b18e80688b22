"""A vocabulary that needs no file."""

from __future__ import annotations

from stolon.constrained.vocabulary import Vocabulary

__all__ = ["byte_vocabulary"]


def byte_vocabulary() -> Vocabulary:
    """One token for each byte, and one that ends."""
    return Vocabulary(
        [bytes((byte,)) for byte in range(256)] + [b"<end>"],
        frozenset([256]),
        frozenset([256]),
        lambda text: list(text.encode()),
    )
