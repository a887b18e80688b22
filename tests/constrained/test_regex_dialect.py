"""The regex parsers: texts that match and texts that don't, refusals, agreement with `re`."""

from __future__ import annotations

import random
import re
import sys
import time

import pytest
from support import random_regexes

from stolon.constrained.regex import parse_ecma_search, parse_regex, to_rust
from stolon.constrained.regex_ast import NOTHING, Chars, Node, Repeat
from stolon.constrained.regex_build import complement, intersect, union
from stolon.constrained.regex_classes import unicode_property, unicode_word
from stolon.errors import GrammarError


def python_regex(node: Node) -> re.Pattern[str]:
    """A tree as a pattern of `re`: Rust's text, but for the form of its code points."""
    text = re.sub(r"\\x\{([0-9A-F]+)\}", lambda m: rf"\U{int(m[1], 16):08X}", to_rust(node))
    return re.compile(text)


TABLE = [
    (r"a{2,3}", ["aa", "aaa"], ["a", "aaaa"]),
    (r"a{,2}b", ["b", "aab"], ["aaab"]),
    (r"x{2}{3}", ["x" * 6], ["x" * 5]),
    (r"{}|a{b|{1", ["{}", "a{b", "{1"], ["a", "{"]),
    (r"(?i)straße", ["STRAßE", "strAẞe"], ["strasse"]),
    (r"(?i)k", ["k", "K", "\u212a"], ["c"]),
    (r"a(?i)b(?-i)c|d", ["abc", "aBc", "d"], ["Abc", "abC", "D"]),
    (r"(?i:a)b", ["Ab"], ["AB"]),
    (r"(?s).", ["\n", "a"], ["", "ab"]),
    (r".", ["a", "\r", "🎈"], ["\n"]),
    ("(?x) a b # c\n d", ["abd"], ["a b d"]),
    (r"(?m)a$\n^b", ["a\nb"], ["ab"]),
    (r"(?mR)a$\r\n^b", ["a\r\nb"], ["a\nb"]),
    (r"^a|b$|\Ac\z", ["a", "b", "c"], ["ab"]),
    (r"(^a|b)*c", ["c", "ac", "bbc", "abc"], ["bac", "aac"]),
    (r"(a|b$)+", ["a", "ab", "aab"], ["ba", "bb"]),
    (r"\bfoo\b", ["foo"], ["foob"]),
    (r"(\bfoo\b ?)+", ["foo", "foo foo", "foo "], ["foofoo"]),
    (r"a\B.\b.", ["ab ", "ab!"], ["a b", "abc"]),
    (r"(?-u:\b)é(?-u:\b)a", [], ["éa"]),
    (r"\b{start}a\b{end}.*", ["a", "a b"], ["ab"]),
    (r"\d", ["1", "२"], ["a", "Ⅱ"]),
    (r"(?-u)\d\w\s", ["1a "], ["२a ", "1é "]),
    (r"\w+", ["dδd", "éा", "_1"], ["⥡", "a b"]),
    (r"\s", [" ", "\u2003", "\u0085"], ["\ufeff"]),
    (r"\p{Lu}\pN\p{Greek}\P{L}", ["A1δ."], ["a1δ.", "A1da", "A1δb"]),
    (r"\p{script=Cyrillic}\p{^L}\p{gc!=Lu}", ["ж1a"], ["z1a", "жaa", "ж1A"]),
    (r"[[:alpha:]&&[^a-c]--[x]]", ["d", "Z"], ["a", "x", "1"]),
    (r"[a-d~~c-f]", ["a", "f"], ["c", "d"]),
    (r"[]a][^]a][a-][-a]", ["]b--", "a[aa"], ["]]--"]),
    (r"[\x41\u0042\u{1F388}\t\]\\]", ["A", "B", "🎈", "\t", "]", "\\"], ["C"]),
    (r"\x{e9}\U0001F388\/\-\.", ["é🎈/-."], ["é🎈/-x"]),
    (r"(?P<n>a)(?<m>b)(?:c)(?#note)", ["abc"], ["ab"]),
    (r"a*?b+?c??", ["b", "aabc"], ["a"]),
    (r"(?U)a+b", ["aab"], ["b"]),
    ("", [""], ["a"]),
    (r"(|a)+b", ["b", "aab"], ["a"]),
]


@pytest.mark.parametrize(("pattern", "matching", "others"), TABLE)
def test_whole_texts(pattern: str, matching: list[str], others: list[str]) -> None:
    regex = python_regex(parse_regex(pattern))
    assert [t for t in matching if not regex.fullmatch(t)] == []
    assert [t for t in others if regex.fullmatch(t)] == []


ECMA = [
    (r"b", ["abc", "b"], ["a"]),
    (r"^a", ["ab", "a"], ["ba"]),
    (r"a$", ["ba"], ["ab", "a\n"]),
    (r"^(a|b)$|^c", ["a", "b", "cx"], ["ax", "xc"]),
    (r"^[\w.-]+@\d$", ["a.b-@1"], ["é@1", "a@२"]),
    (r"^\s$", ["\ufeff", "\u2028", " "], ["\u0085"]),
    (r"^.$", ["\u0085", "a"], ["\n", "\r", "\u2028"]),
    (r"^[^]$", ["\n", "a"], [""]),
    (r"^\u{1F388}\uD83C\uDF88\cJ\0[\b]$", ["🎈🎈\n\0\b"], ["🎈"]),
    (r"\bé", ["aé"], ["é", " é"]),
    (r"^\p{L}+$", ["aé"], ["1"]),
    (r"^\-\_\@\"\/$", ['-_@"/'], []),
    (r"^[a-\d]$", ["a", "-", "5"], ["b"]),
    (r"^[[&&]+$", ["[&"], ["a"]),
    (r"^a{x}$", ["a{x}"], ["a"]),
    (r"(?i)^A$", ["a"], ["b"]),
    (r"^$", [""], ["a"]),
    (r"", ["", "a"], []),
]


@pytest.mark.parametrize(("pattern", "matching", "others"), ECMA)
def test_ecma_search(pattern: str, matching: list[str], others: list[str]) -> None:
    regex = python_regex(parse_ecma_search(pattern))
    assert [t for t in matching if not regex.fullmatch(t)] == []
    assert [t for t in others if regex.fullmatch(t)] == []


@pytest.mark.parametrize(
    ("pattern", "word", "offset"),
    [
        ("ab(?=c)", "look-around", 2),
        ("(?<!c)", "look-around", 0),
        (r"(a)\1", "back-reference", 3),
        (r"\k<n>", "back-reference", 0),
        ("(?>a)", "atomic", 0),
        ("a(?(1)b)", "conditional", 1),
        ("a*+", "possessive", 1),
        (r"a\Z", "anchor", 1),
        ("a(", "unclosed group", 1),
        ("a)", "not opened", 1),
        ("a[b", "unclosed set", 1),
        ("[b-a]", "reversed", 1),
        ("a{3,1}", "reversed", 1),
        ("a{100001}", "repeats", 1),
        ("|*", "nothing before", 1),
        (r"\y", "escape", 0),
        (r"a\p{Nope}", "property", 1),
        (r"[[:nope:]]", "class", 1),
        (r"\uD800", "surrogate", 0),
        (r"\x{110000}", "code point", 0),
        ("(?z)a", "flag", 0),
        ("(?-u).", "bytes", 5),
        ("a\\", "backslash", 1),
        ("((" * 100, "nested", 100),
        ("a" + "{2}" * 200, "nested", 301),
        (r"(?:a\B| \b|b\b){3,40}", "worked out", None),
    ],
)
def test_refusals_name_the_feature_and_the_offset(
    pattern: str, word: str, offset: int | None
) -> None:
    with pytest.raises(GrammarError, match=word) as caught:
        parse_regex(pattern)
    assert "regex" in caught.value.message
    assert caught.value.where == (None if offset is None else f"offset {offset}")


@pytest.mark.parametrize("pattern", ["a^b", "$a", r"a\bb", "[a&&b]", r"[^\s\S]", "(?m)a^"])
def test_what_matches_nothing_is_known(pattern: str) -> None:
    assert parse_regex(pattern) == NOTHING


def test_repeats_are_kept_and_simplified() -> None:
    assert parse_regex("(?:a{2}){1,100000}") == Repeat(Repeat(Chars(((97, 97),)), 2, 2), 1, 100_000)
    assert parse_regex("((a*)*)*") == parse_regex("a*")
    assert parse_regex("(a?){3}") == parse_regex("a{0,3}")
    assert parse_regex("a|b|[c-d]") == parse_regex("[a-d]")


def test_long_patterns_are_read_soon_and_without_recursion() -> None:
    limit = sys.getrecursionlimit()
    begun = time.perf_counter()
    for pattern in ("a" * 60_000, "(a|b)" * 10_000, "[ab]*" * 10_000, "(" * 45 + "a" + "b)*" * 45):
        to_rust(parse_regex(pattern))
    assert time.perf_counter() - begun < 5
    assert sys.getrecursionlimit() == limit


def test_sets_of_characters() -> None:
    word = unicode_word()
    assert complement(complement(word)) == word
    assert intersect(word, complement(word)) == ()
    assert union(word, complement(word)) == ((0, 0xD7FF), (0xE000, 0x10FFFF))
    assert unicode_property("currency symbol") == unicode_property("gc=Sc")
    assert unicode_property("Latin") == unicode_property("sc:latn")
    assert unicode_property("sc=Sc") is None


def test_agreement_with_re() -> None:
    rng = random.Random(7)
    matched = 0
    for _ in range(1500):
        pattern = random_regexes.pattern(rng, 3, anchors=True)
        multi = "(?m)" if rng.random() < 0.4 else ""
        # `$` of `re` matches before a last line feed too.
        reference = re.compile(multi + (pattern if multi else pattern.replace("$", r"\Z")))
        try:
            ours = python_regex(parse_regex(multi + pattern))
        except GrammarError:
            continue
        for _ in range(20):
            text = random_regexes.text(rng)
            if text or r"\B" not in pattern:  # `re` has no \B in the empty text
                matched += (found := bool(reference.fullmatch(text)))
                assert bool(ours.fullmatch(text)) == found, (multi + pattern, text)
    assert matched > 1000
