"""Seeds derived from names: of a branch of a program, of a call, of an item of a batch."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) for something named by `parts`: a seed, a branch, a call number.

    The encoding is injective: ``("a", "b")``, ``("ab",)`` and ``("a", 1)``, ``("a", "1")`` all
    differ.
    """
    digest = hashlib.blake2b(digest_size=8, person=b"stolon-seed")
    for part in parts:
        text = part.encode("utf-8") if isinstance(part, str) else b"%d" % part
        digest.update(b"%c%d:" % (b"s" if isinstance(part, str) else b"i", len(text)))
        digest.update(text)
    return int.from_bytes(digest.digest(), "little") >> 1
