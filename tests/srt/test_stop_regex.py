"""Stop patterns against Python's own matcher."""

from __future__ import annotations

import random
import re
import time

import pytest

from stolon.errors import GrammarError
from stolon.srt.stop_regex import StopRegex

PATTERNS = [
    "ab",
    "a+b",
    "a|bc",
    "(ab|ba)c",
    "[^ab]",
    "a{2,3}b",
    r"\d\d",
    r"\w\s",
    ".b.",
    "(a|b)*c",
    "x?ca",
    "é+",
    "(?i)AB",
]


def earliest_end(pattern: str, text: str) -> int | None:
    """Where the match that is complete first ends, by trying every prefix."""
    for end in range(1, len(text) + 1):
        if any(re.compile(pattern).fullmatch(text, begin, end) for begin in range(end)):
            return end
    return None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_agrees_with_re(pattern: str) -> None:
    rng = random.Random(pattern)
    regex = StopRegex(pattern)
    for _ in range(150):
        text = "".join(rng.choice("abcxé1 2_AB") for _ in range(rng.randrange(12)))
        found = regex.search().feed(text, 0)
        end = earliest_end(pattern, text)
        assert (found[1] if found else None) == end, text
        if found:
            starts = [
                b for b in range(end or 0) if re.compile(pattern).fullmatch(text, b, end or 0)
            ]
            assert found[0] == starts[0], text


def test_pieces_do_not_matter() -> None:
    regex = StopRegex(r"end\d+!")
    text = "this is the end12! of it"
    whole = regex.search().feed(text, 0)
    search = regex.search()
    for at in range(len(text)):
        found = search.feed(text[: at + 1], at)
        if found:
            break
    assert found == whole == (12, 18)


def test_an_unfinished_match_is_held_back() -> None:
    search = StopRegex("abc").search()
    search.feed("xxab", 0)
    assert search.earliest_start(4) == 2
    search.feed("xxabx", 4)
    assert search.earliest_start(5) == 5


def test_a_pattern_that_backtracks_takes_linear_time() -> None:
    search = StopRegex("(a+)+b").search()
    begun = time.perf_counter()
    assert search.feed("a" * 5000, 0) is None
    assert time.perf_counter() - begun < 2.0


@pytest.mark.parametrize(
    "pattern", ["(", "a*", "^a", "a$", r"\ba", "(?=a)b", r"(a)\1", "(a{900}){900}", "(?i:a)"]
)
def test_refused(pattern: str) -> None:
    with pytest.raises(GrammarError) as caught:
        StopRegex(pattern)
    assert caught.value.param == "stop_regex"
