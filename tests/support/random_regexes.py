"""Random patterns and texts, small enough to be tried against another engine."""

from __future__ import annotations

import random

ATOMS = ("a", "b", "c", "ab", "[ab]", "[^a]", ".", r"\w", r"\d", "é", "[а-я]", "🎈", r"\n", r"\W")
QUANTIFIERS = ("*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}", "{2,4}")
ANCHORS = ("^", "$", r"\b", r"\B")
LETTERS = "aabbcéж🎈\n 1"


def pattern(rng: random.Random, depth: int, *, anchors: bool = False) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return rng.choice(ATOMS)
    if anchors and kind < 0.4:
        return rng.choice(ANCHORS)
    if kind < 0.65:
        return "".join(pattern(rng, depth - 1, anchors=anchors) for _ in range(2))
    inner = pattern(rng, depth - 1, anchors=anchors)
    if kind < 0.8:
        return f"(?:{inner}|{pattern(rng, depth - 1, anchors=anchors)})"
    return f"(?:{inner}){rng.choice(QUANTIFIERS)}"


def text(rng: random.Random, size: int = 6) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(size + 1)))
