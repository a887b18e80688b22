"""Randomness without state: a number is a function of (seed, sample, position) and of nothing else.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is a keyed
bijection of a counter. The seed is its key; position and sample are its counter. So the draw for a
token needs no generator that was advanced before it: batching, retraction, resuming and speculation
can't shift it.
"""

from __future__ import annotations

import hashlib

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32 with 10 rounds: four 32-bit words from a 128-bit counter and a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left = 0xD2511F53 * c0
        right = 0xCD9E8D57 * c2
        c0 = (right >> 32) ^ c1 ^ k0
        c1 = right & _MASK32
        c2 = (left >> 32) ^ c3 ^ k1
        c3 = left & _MASK32
        k0 = (k0 + 0x9E3779B9) & _MASK32
        k1 = (k1 + 0xBB67AE85) & _MASK32
    return c0, c1, c2, c3


def uniform(seed: int, sample: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2**-53.

    Args:
        seed: its low 64 bits count.
        sample: index of the sample within its request; low 64 bits count.
        position: index of the token in its sequence; low 64 bits count.
    """
    seed, sample, position = seed & _MASK64, sample & _MASK64, position & _MASK64
    high, low, _, _ = philox(
        (position & _MASK32, position >> 32, sample & _MASK32, sample >> 32),
        (seed & _MASK32, seed >> 32),
    )
    return ((high << 32 | low) >> 11) * 2.0**-53


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
