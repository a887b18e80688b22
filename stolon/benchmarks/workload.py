"""The text that is measured: ordinary English, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable

PREFILL_TOKENS = 512
PROMPT_TOKENS = 64
BATCHES = (1, 8, 32)
SHARED_SEQUENCES = 16
SHARED_CONTEXT = 4096
SHARED_TOKENS = 3500
SHARED_NEW_TOKENS = 32

RATES = ("prefill", *(f"decode_{n}" for n in BATCHES), "shared")
"""The measures that are tokens per second."""

_PLACES = ("harbour", "mill", "orchard", "bridge", "library", "station", "market", "lighthouse")
_PEOPLE = (
    "the baker",
    "a surveyor",
    "two children",
    "the ferryman",
    "an old teacher",
    "the night nurse",
)
_DEEDS = (
    "counted the boats that came back before the rain",
    "wrote down which lamps were still burning",
    "asked why the road had been moved three times",
    "carried a box of letters that nobody had opened",
    "measured the height of the water against the wall",
    "told the story of the winter when the river froze",
    "repaired the clock and set it eleven minutes fast",
)


def passage(number: int, sentences: int) -> str:
    """A paragraph of its own for each number: no two begin alike, so no two share cached tokens."""
    parts = [f"Entry {number * 37 % 997}."]
    for i in range(sentences):
        place = _PLACES[(number + i) % len(_PLACES)]
        person = _PEOPLE[(number * 5 + i * 3) % len(_PEOPLE)]
        deed = _DEEDS[(number * 3 + i * 2) % len(_DEEDS)]
        parts.append(f"By the {place}, on day {number + i * i + 1}, {person} {deed}.")
    return " ".join(parts)


def token_prompts(tokenize: Callable[[str], list[int]], count: int, length: int) -> list[list[int]]:
    """`count` different prompts of exactly `length` tokens."""
    prompts = [tokenize(passage(i, length // 8))[:length] for i in range(count)]
    if any(len(ids) != length for ids in prompts):
        raise ValueError(f"the passages are shorter than {length} tokens")
    return prompts


def shared_prompts(tokenize: Callable[[str], list[int]]) -> list[list[int]]:
    """SHARED_SEQUENCES prompts of SHARED_CONTEXT tokens that part after SHARED_TOKENS."""
    own = SHARED_CONTEXT - SHARED_TOKENS
    common, *tails = token_prompts(tokenize, SHARED_SEQUENCES + 1, SHARED_TOKENS)
    return [common + tail[:own] for tail in tails]
