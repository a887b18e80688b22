"""Randomness without state: a number is a function of (seed, sample, position) and of nothing else.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is a keyed
bijection of a counter. The seed is its key; position and sample are its counter. So the draw for a
token needs no generator that was advanced before it: batching, retraction, resuming and speculation
can't shift it. Within a draw every token of the vocabulary has a number of its own (see `filters.draw`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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


def draw_key(seed: int, sample: int, position: int) -> tuple[int, int]:
    """The two 32-bit words that key the draw of one token.

    Args:
        seed: its low 64 bits count.
        sample: index of the sample within its request; low 64 bits count.
        position: index of the token in its sequence; low 64 bits count.
    """
    seed, sample, position = seed & _MASK64, sample & _MASK64, position & _MASK64
    first, second, _, _ = philox(
        (position & _MASK32, position >> 32, sample & _MASK32, sample >> 32),
        (seed & _MASK32, seed >> 32),
    )
    return first, second


def token_uniforms(key: tuple[int, int], tokens: NDArray[np.uint32]) -> NDArray[np.float32]:
    """A number in (0, 1) for each token id, a function of the key and that id alone.

    The finaliser of MurmurHash3 over the id and both words of the key; a few vector operations over
    the whole vocabulary. Small numbers keep their relative precision.
    """
    hashed = tokens * np.uint32(0x9E3779B1)
    hashed += np.uint32(key[0])
    hashed ^= hashed >> np.uint32(16)
    hashed *= np.uint32(0x85EBCA6B)
    hashed += np.uint32(key[1])
    hashed ^= hashed >> np.uint32(13)
    hashed *= np.uint32(0xC2B2AE35)
    hashed ^= hashed >> np.uint32(16)
    numbers = hashed.astype(np.float32)
    numbers += np.float32(0.5)
    numbers *= np.float32(2.0**-32)
    # 2**32 - 1 rounds up to 2**32 in float32.
    np.minimum(numbers, np.float32(1 - 2.0**-24), out=numbers)
    return numbers
