"""The algebra of string languages against Python's regular expressions."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from stolon.constrained.regex_parser import parse_ecma_search
from stolon.constrained.schema.budget import Budget
from stolon.constrained.schema.language import Language
from stolon.constrained.schema.languages import Languages

PATTERNS = ("^a", "b$", "^[ab]*$", "a.c", "^(ab|ba){1,2}$", "^$", "c+", "^.{2,3}$", "^a{3,5}b?$")
TEXTS = st.text("abc", max_size=7)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[object, ...]:
    """A boolean combination: (pattern), (not, x), (and, x, y) or (or, x, y)."""
    kind = draw(st.sampled_from(("pattern", "not", "and", "or"))) if depth else "pattern"
    if kind == "pattern":
        return (draw(st.sampled_from(PATTERNS)),)
    inner = expressions(depth - 1)
    return (kind, draw(inner)) if kind == "not" else (kind, draw(inner), draw(inner))


def language(algebra: Languages, expression: tuple[object, ...]) -> Language:
    match expression:
        case ("not", inner):
            return algebra.complement(language(algebra, inner))
        case (("and" | "or") as kind, left, right):
            both = [language(algebra, left), language(algebra, right)]
            return algebra.intersection(both) if kind == "and" else algebra.union(both)
        case (pattern,):
            return algebra.tree(parse_ecma_search(str(pattern)))
    raise AssertionError(expression)


def matches(expression: tuple[object, ...], text: str) -> bool:
    match expression:
        case ("not", inner):
            return not matches(inner, text)
        case ("and", left, right):
            return matches(left, text) and matches(right, text)
        case ("or", left, right):
            return matches(left, text) or matches(right, text)
        case (pattern,):
            # Python's $ also matches before a line end at the end; there is none in these texts.
            return re.search(str(pattern), text) is not None
    raise AssertionError(expression)


@settings(max_examples=80, deadline=None)
@given(expressions(), st.lists(TEXTS, min_size=4, max_size=8))
def test_membership_and_emptiness(expression: tuple[object, ...], texts: list[str]) -> None:
    algebra = Languages(Budget(seconds=30))
    term = language(algebra, expression)
    empty = algebra.is_empty(term)
    for text in texts:
        assert algebra.contains(term, text) == matches(expression, text)
        assert not (empty and algebra.contains(term, text))


def test_what_is_disjoint_is_proven_so() -> None:
    algebra = Languages(Budget())

    def of(pattern: str) -> Language:
        return algebra.tree(parse_ecma_search(pattern))

    assert algebra.disjoint(of("^x-"), of("^[a-w]"))
    assert algebra.disjoint(of("^.{3}$"), algebra.length(4, 900))
    assert not algebra.disjoint(of("a$"), of("^b"))
    assert algebra.is_empty(algebra.difference(of("^(a|b)c$"), algebra.words(["ac", "bc"])))
    assert algebra.is_empty(algebra.difference(of("^ab*$"), of("^a"))) is True
    assert algebra.is_empty(algebra.difference(of("^a"), of("^ab*$"))) is False


def test_finite_sets_stay_sets() -> None:
    algebra = Languages(Budget())
    words = algebra.words(["a", "b", "ab"])
    assert algebra.intersection((words, algebra.length(2, None))).words == {"ab"}
    assert algebra.difference(words, algebra.words(["a"])).words == {"b", "ab"}
    assert algebra.union((words, algebra.complement(words))) is not algebra.nothing
    assert algebra.complement(algebra.complement(words)) is words
